"use strict";

// Charts: the value under the pointer.
for (const svg of document.querySelectorAll("svg[data-readout]")) {
  const places = JSON.parse(svg.dataset.readout);
  const cursor = svg.querySelector(".cursor");
  const output = svg.parentElement.querySelector("output");
  svg.addEventListener("pointermove", (event) => {
    const x = ((event.clientX - svg.getBoundingClientRect().left) / svg.clientWidth) * svg.viewBox.baseVal.width;
    const [at, text] = places.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
    cursor.setAttribute("transform", `translate(${at} 0)`);
    cursor.style.visibility = "visible";
    output.textContent = text;
  });
  svg.addEventListener("pointerleave", () => {
    cursor.style.visibility = "hidden";
    output.textContent = "";
  });
}

// The map: zoom, drag, and the class under the pointer.
const map = document.querySelector(".map");
if (map) {
  const svg = map.querySelector("svg");
  const tip = map.querySelector(".tip");
  const picture = tip.querySelector("img");
  const box = svg.viewBox.baseVal;
  const [width, height] = [box.width, box.height];
  const view = { x: 0, y: 0, zoom: 1 };

  const show = () => {
    const [w, h] = [width / view.zoom, height / view.zoom];
    view.x = Math.min(Math.max(view.x, 0), width - w);
    view.y = Math.min(Math.max(view.y, 0), height - h);
    svg.setAttribute("viewBox", `${view.x} ${view.y} ${w} ${h}`);
    svg.style.setProperty("--shrink", 1 / view.zoom);
    for (const zoom of [2, 4, 8]) svg.classList.toggle(`at${zoom}`, view.zoom === zoom);
  };
  // What is under the given point stays there; without a point, the middle does.
  const zoomTo = (zoom, px = 0.5, py = 0.5) => {
    zoom = Math.min(Math.max(zoom, 1), 8);
    view.x += (width / view.zoom - width / zoom) * px;
    view.y += (height / view.zoom - height / zoom) * py;
    view.zoom = zoom;
    show();
  };
  const share = (event) => {
    const r = svg.getBoundingClientRect();
    return [(event.clientX - r.left) / r.width, (event.clientY - r.top) / r.height];
  };

  for (const button of map.querySelectorAll("button")) {
    const change = { in: () => zoomTo(view.zoom * 2), out: () => zoomTo(view.zoom / 2), whole: () => zoomTo(1) };
    button.addEventListener("click", change[button.dataset.zoom]);
  }
  map.querySelector("input").addEventListener("change", (event) => svg.classList.toggle("misses", event.target.checked));
  svg.addEventListener("dblclick", (event) => zoomTo(view.zoom * 2, ...share(event)));
  let turned = 0;
  svg.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      if (event.timeStamp - turned < 150) return;
      turned = event.timeStamp;
      zoomTo(event.deltaY < 0 ? view.zoom * 2 : view.zoom / 2, ...share(event));
    },
    { passive: false },
  );

  let held = null;
  svg.addEventListener("pointerdown", (event) => (held = [event.clientX, event.clientY]));
  addEventListener("pointerup", () => (held = null));

  let met = null;
  const leave = () => {
    if (!met) return;
    met = null;
    tip.hidden = true;
    svg.classList.remove("chosen");
    for (const mate of svg.querySelectorAll(".mate")) mate.classList.remove("mate");
  };
  const meet = (point) => {
    leave();
    met = point;
    for (const mate of svg.querySelectorAll(`[data-class="${point.dataset.class}"]`)) mate.classList.add("mate");
    svg.classList.add("chosen");
    const image = point.querySelector("image");
    if (image) picture.src = image.getAttribute("href");
    tip.querySelector("p").textContent = point.dataset.says;
    tip.hidden = false;
  };
  svg.addEventListener("pointermove", (event) => {
    if (held && event.buttons) {
      view.x -= ((event.clientX - held[0]) / svg.clientWidth) * (width / view.zoom);
      view.y -= ((event.clientY - held[1]) / svg.clientHeight) * (height / view.zoom);
      held = [event.clientX, event.clientY];
      leave();
      show();
      return;
    }
    const point = event.target.closest(".point");
    if (!point) return leave();
    if (point !== met) meet(point);
    const r = map.getBoundingClientRect();
    const [x, y] = [event.clientX - r.left, event.clientY - r.top];
    tip.style.left = `${x > r.width / 2 ? x - tip.offsetWidth - 16 : x + 16}px`;
    tip.style.top = `${y > r.height / 2 ? y - tip.offsetHeight - 16 : y + 16}px`;
  });
  svg.addEventListener("pointerleave", leave);
}
