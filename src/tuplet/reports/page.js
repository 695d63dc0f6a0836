"use strict";

// Charts: show the value under the pointer.
for (const svg of document.querySelectorAll("svg[data-readout]")) {
  const values = JSON.parse(svg.dataset.readout);
  const cursor = svg.querySelector(".cursor");
  const output = svg.parentElement.querySelector("output");
  svg.addEventListener("pointermove", (event) => {
    const x = ((event.clientX - svg.getBoundingClientRect().left) / svg.clientWidth) * svg.viewBox.baseVal.width;
    const [at, text] = values.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
    cursor.setAttribute("transform", `translate(${at} 0)`);
    cursor.style.visibility = "visible";
    output.textContent = text;
  });
  svg.addEventListener("pointerleave", () => {
    cursor.style.visibility = "hidden";
    output.textContent = "";
  });
}

// Map: zoom, drag, and highlight the class under the pointer.
const map = document.querySelector(".map");
if (map) {
  const svg = map.querySelector("svg");
  const tip = map.querySelector(".tip");
  const near = tip.querySelector(".near");
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
  // Zoom around a point, given as fractions of the width and the height; the centre by default.
  const zoomTo = (zoom, px = 0.5, py = 0.5) => {
    zoom = Math.min(Math.max(zoom, 1), 8);
    view.x += (width / view.zoom - width / zoom) * px;
    view.y += (height / view.zoom - height / zoom) * py;
    view.zoom = zoom;
    show();
  };
  const fractions = (event) => {
    const r = svg.getBoundingClientRect();
    return [(event.clientX - r.left) / r.width, (event.clientY - r.top) / r.height];
  };

  for (const button of map.querySelectorAll("button[data-zoom]")) {
    const change = { in: () => zoomTo(view.zoom * 2), out: () => zoomTo(view.zoom / 2), whole: () => zoomTo(1) };
    button.addEventListener("click", change[button.dataset.zoom]);
  }
  map.querySelector("input").addEventListener("change", (event) => svg.classList.toggle("misses", event.target.checked));
  svg.addEventListener("dblclick", (event) => zoomTo(view.zoom * 2, ...fractions(event)));
  let lastWheel = 0;
  svg.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      if (event.timeStamp - lastWheel < 150) return;
      lastWheel = event.timeStamp;
      zoomTo(event.deltaY < 0 ? view.zoom * 2 : view.zoom / 2, ...fractions(event));
    },
    { passive: false },
  );

  let dragged = null;
  svg.addEventListener("pointerdown", (event) => (dragged = [event.clientX, event.clientY]));
  addEventListener("pointerup", () => (dragged = null));

  let hovered = null;
  let pinned = null;
  const highlight = (label) => {
    for (const mate of svg.querySelectorAll(".mate")) mate.classList.remove("mate");
    svg.classList.toggle("chosen", label !== null);
    for (const mate of svg.querySelectorAll(`[data-class="${label}"]`)) mate.classList.add("mate");
  };
  const leave = () => {
    if (!hovered) return;
    hovered = null;
    tip.hidden = true;
    highlight(pinned);
  };
  const fill = (box, point, text) => {
    const image = point && point.querySelector("image");
    if (image) box.querySelector("img").src = image.getAttribute("href");
    else box.querySelector("img").removeAttribute("src");
    box.querySelector("p").textContent = text;
  };
  const enter = (point) => {
    hovered = point;
    highlight(point.dataset.class);
    fill(tip, point, point.dataset.text);
    near.hidden = !point.dataset.near;
    if (point.dataset.near) fill(near, svg.querySelector(`[data-row="${point.dataset.near}"]`), point.dataset.nearText);
    tip.hidden = false;
  };
  for (const button of map.querySelectorAll(".class")) {
    button.addEventListener("pointerenter", () => highlight(button.dataset.class));
    button.addEventListener("pointerleave", () => highlight(pinned));
    button.addEventListener("click", () => {
      pinned = pinned === button.dataset.class ? null : button.dataset.class;
      for (const each of map.querySelectorAll(".class")) each.setAttribute("aria-pressed", each.dataset.class === pinned);
      highlight(pinned);
    });
  }
  svg.addEventListener("pointermove", (event) => {
    if (dragged && event.buttons) {
      view.x -= ((event.clientX - dragged[0]) / svg.clientWidth) * (width / view.zoom);
      view.y -= ((event.clientY - dragged[1]) / svg.clientHeight) * (height / view.zoom);
      dragged = [event.clientX, event.clientY];
      leave();
      show();
      return;
    }
    const point = event.target.closest(".point");
    if (!point) return leave();
    if (point !== hovered) enter(point);
    const r = map.getBoundingClientRect();
    const [x, y] = [event.clientX - r.left, event.clientY - r.top];
    tip.style.left = `${x > r.width / 2 ? x - tip.offsetWidth - 16 : x + 16}px`;
    tip.style.top = `${y > r.height / 2 ? y - tip.offsetHeight - 16 : y + 16}px`;
  });
  svg.addEventListener("pointerleave", leave);
}
