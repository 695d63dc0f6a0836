"use strict";
const $ = id => document.getElementById(id);
const LIKE = 0.97;                 // two results whose cosine is this or more are near-duplicates
const SUGGESTED = 50;              // the most classes to suggest while one is typed
const images = new Map();          // the images of all searches since the page was opened, for the Back button
let about = {}, labels = [], running = null, hits = [];
let query = null;                  // {kind: "image", key, name}, {kind: "item", id} or {kind: "start"}

// Return the JSON of an answer. A busy server is asked again, four times in all.
async function ask(path, options = {}, tries = 4) {
  const response = await fetch(path, options);
  if (response.status === 503 && tries > 1) {
    await new Promise(wake => setTimeout(wake, 1000 * (Number(response.headers.get("retry-after")) || 1)));
    return ask(path, options, tries - 1);
  }
  if (response.ok) return response.json();
  let sentence = `the server answered ${response.status}`;
  try { sentence = (await response.json()).detail; } catch { /* the answer has no reason */ }
  throw Object.assign(new Error(sentence), {status: response.status});
}

async function search() {
  if (running) running.abort();
  const stop = running = new AbortController();
  document.body.classList.add("busy");
  $("results").setAttribute("aria-busy", "true");
  for (const id of ["problem", "hint"]) $(id).hidden = true;
  remember();
  const begun = performance.now();
  try {
    const options = new URLSearchParams({k: $("count").value});
    if ($("label").value) options.append("label", $("label").value);
    if ($("where").value.trim()) options.append("where", JSON.stringify(conditions($("where").value)));
    if ($("distinct").checked) options.append("distinct", LIKE);
    let found;
    if (query.kind === "image") {
      const body = await fitting(images.get(query.key));
      found = await ask(`/api/search/image?${options}`, {method: "POST", body, signal: stop.signal});
    } else if (query.kind === "item") {
      options.append("id", query.id);
      found = await ask(`/api/search/item?${options}`, {signal: stop.signal});
    } else if (!options.has("label") && !options.has("where")) {
      found = await ask(`/api/start?k=${$("count").value}`, {signal: stop.signal});
    } else {
      const vector = Array.from({length: about.dim}, () => Math.random() * 2 - 1);
      found = await ask(`/api/search/vector?${options}`, {method: "POST", body: JSON.stringify({vector}), signal: stop.signal});
    }
    hits = found.hits;
    show(performance.now() - begun);
  } catch (error) {
    if (error.name === "AbortError") return;
    // The results on the page belong to an earlier search.
    hits = [];
    for (const id of ["grid", "chips", "time"]) $(id).replaceChildren();
    $("scores").hidden = true;
    $("title").textContent = "No results";
    $("problem").textContent = query.kind === "image" ? uploadProblem(error) : sentence(error.message);
    $("problem").hidden = false;
  } finally {
    if (running === stop) {
      document.body.classList.remove("busy");
      $("results").removeAttribute("aria-busy");
      running = null;
    }
  }
}

// Return the filter of "camera=3, place=Paris, France": a comma separates only before the next name or at the end.
// A value that is JSON, such as 3, true or [3, 4], is not text.
function conditions(text) {
  const found = new Map();
  for (const part of text.split(/,(?=[^,=]*=|\s*$)/).filter(part => part.trim())) {
    if (!part.includes("=")) throw new Error(`“${part.trim()}” is no filter; write a name and a value, such as camera=3`);
    const [key, ...rest] = part.split("="), value = rest.join("=").trim(), name = key.trim();
    if (found.has(name)) throw new Error(`“${name}” is given twice; write its values as a list, such as camera=[3, 4]`);
    try { found.set(name, JSON.parse(value)); } catch { found.set(name, value); }
  }
  return Object.fromEntries(found);
}

const sentence = text => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

// Write the item and the filters into the address, so that a search can be kept and sent.
function remember() {
  const parts = new URLSearchParams();
  if (query.kind === "item") parts.set("item", query.id);
  for (const id of ["label", "where"]) if ($(id).value) parts.set(id, $(id).value);
  if ($("count").value !== "24") parts.set("results", $("count").value);
  if ($("distinct").checked) parts.set("distinct", "1");
  const text = String(parts);
  history.replaceState(query, "", text ? `?${text}` : "/");
}

// Read the filters from the address.
function recall() {
  const parts = new URLSearchParams(location.search);
  for (const id of ["label", "where"]) $(id).value = parts.get(id) || "";
  if ($("where").value) $("filter").hidden = false;
  $("count").value = [...$("count").options].some(option => option.value === parts.get("results")) ? parts.get("results") : "24";
  $("distinct").checked = parts.get("distinct") === "1";
}

// Say what is wrong with an upload, to somebody who knows the file and not the interface.
function uploadProblem(error) {
  const named = query.name ? `“${query.name}”` : "This file";
  const formats = "a JPEG, PNG, WebP, GIF, TIFF or AVIF";
  if (error.status === 415) return `${named} is not an image that can be read here. It may be damaged or of another kind; choose ${formats}.`;
  if (error.status === 413) return `${named} is too large: at most ${Math.round(about.limits.bytes / 2 ** 20)} MB and ${Math.round(about.limits.pixels / 1e6)} million pixels. Choose a smaller one.`;
  return sentence(error.message);
}

// Shrink an image that is larger than the server accepts, if the browser can read it.
async function fitting(file) {
  if (!about.limits || file.size <= about.limits.bytes) return file;
  const image = await createImageBitmap(file).catch(() => null);
  if (!image) return file;
  const scale = Math.min(1, 2048 / Math.max(image.width, image.height));
  const canvas = new OffscreenCanvas(Math.round(image.width * scale), Math.round(image.height * scale));
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.convertToBlob({type: "image/jpeg", quality: 0.92});
}

function show(milliseconds) {
  const start = query.kind === "start";
  $("title").textContent = start && hits.length ? "Start from one of these" : hits.length === 1 ? "1 result" : `${hits.length} results`;
  $("time").textContent = start ? "" : `in ${milliseconds < 1000 ? Math.round(milliseconds) + " ms" : (milliseconds / 1000).toFixed(1) + " s"}`;
  $("scores").hidden = start || !hits.length;
  $("scores").textContent = `Scores: ${about.scores}.`;
  $("status").textContent = start ? "" : `${hits.length} results` + (hits[0] ? `, nearest ${name(hits[0])}` : "");
  $("grid").replaceChildren(...hits.map(card));
  facets();
}

// Return the text of any JSON value: String() fails on {toString: 1}.
const plain = value => typeof value === "object" ? JSON.stringify(value) : String(value);
// Remove the number before a name, as in 001.Black_footed_Albatross, but nothing of the number 1.5.
const pretty = text => text.replace(/^\d+\.(?=\D)/, "").replaceAll("_", " ");
const name = hit => hit.metadata.label == null ? hit.id : pretty(plain(hit.metadata.label));
const thumbnail = id => `/api/thumbnail?id=${encodeURIComponent(id)}`;

function make(tag, attributes = {}, ...children) {
  const element = Object.assign(document.createElement(tag), attributes);
  element.append(...children);
  return element;
}

function card(hit, place) {
  const image = make("img", {src: thumbnail(hit.id), alt: "", loading: "lazy", decoding: "async"});
  const shot = make("span", {className: "shot"}, image);
  image.addEventListener("error", () => shot.replaceChildren(make("span", {className: "none", textContent: hit.id})));
  const text = make("span", {className: "text"}, make("span", {className: "label", textContent: name(hit)}));
  const rest = Object.entries(hit.metadata).filter(([key]) => key !== "label" && key !== "file").map(([key, value]) => `${key} ${plain(value)}`);
  if (rest.length) $("filter").hidden = false;  // there is something to filter by
  if (rest.length) text.append(make("span", {className: "rest", textContent: rest.join(" · "), title: rest.join("\n")}));
  if (query.kind !== "start") {
    const score = make("span", {className: "score"}, hit.score.toFixed(3));
    if (about.cosine) {
      const fill = make("b");
      fill.style.width = `${100 * Math.max(0, Math.min(1, hit.score))}%`;
      score.append(make("u", {}, fill));
    }
    text.append(score);
  }
  const button = make("button", {type: "button", className: "hit", title: hit.id}, shot, text);
  button.setAttribute("aria-label", `${place + 1}: ${name(hit)}` + (query.kind === "start" ? "" : `, score ${hit.score.toFixed(3)}`) + ". Search from it.");
  button.addEventListener("click", () => from(hit));
  const view = make("button", {type: "button", className: "view", innerHTML: MAGNIFIER});
  view.setAttribute("aria-label", `Larger view of ${place + 1}: ${name(hit)}`);
  view.addEventListener("click", () => enlarge(hit));
  return make("li", {}, button, view);
}

const MAGNIFIER = '<svg viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.7" stroke-linecap="round" aria-hidden="true"><path d="M9.5 2H14v4.5M14 2 9 7M6.5 14H2V9.5M2 14l5-5"/></svg>';
const from = hit => go({kind: "item", id: hit.id, label: hit.metadata.label});

// Show a result large: its file if the server shows originals, otherwise its thumbnail.
function enlarge(hit) {
  const file = hit.metadata.file, original = `/api/original?id=${encodeURIComponent(hit.id)}`;
  const shows = about.originals && file && typeof file.path === "string";
  $("large").hidden = false;
  $("large").onerror = () => {
    $("large").onerror = () => { $("large").hidden = true; };
    $("large").src = thumbnail(hit.id);
    $("large-open").hidden = true;
  };
  $("large").src = shows ? original : thumbnail(hit.id);
  $("large").alt = name(hit);
  $("large-label").textContent = name(hit);
  $("large-score").textContent = query.kind === "start" ? "" : `score ${hit.score.toFixed(3)}`;
  $("large-path").textContent = shows ? file.path : hit.id;
  $("large-open").hidden = !shows;
  $("large-open").href = original;
  $("large-search").onclick = () => { $("larger").close(); from(hit); };
  $("larger").showModal();
}

// Make a button that filters by a class, or no longer does.
function chip(label, ...rest) {
  const button = make("button", {type: "button", className: "chip", title: label}, make("span", {textContent: pretty(label)}), ...rest);
  button.addEventListener("click", () => { $("label").value = label === $("label").value ? "" : label; search(); });
  return button;
}

// Show the classes of the results as buttons.
function facets() {
  const counted = new Map();
  for (const {metadata: {label}} of hits) {
    if (label != null && typeof label !== "object") counted.set(String(label), (counted.get(String(label)) || 0) + 1);
  }
  const chosen = $("label").value;
  if (chosen && !counted.has(chosen)) counted.set(chosen, 0);
  const most = [...counted].sort((a, b) => (b[0] === chosen) - (a[0] === chosen) || b[1] - a[1]).slice(0, 8);
  $("chips").replaceChildren();
  if (query.kind === "start" && !chosen) return;
  for (const [label, count] of most) {
    const button = chip(label, make("i", {textContent: count}));
    button.setAttribute("aria-pressed", String(label === chosen));
    $("chips").append(button);
  }
}

// Suggest classes that contain the typed text, most frequent first: only a few, since a list of thousands takes seconds.
function suggest() {
  const typed = $("label").value.toLowerCase(), fitting = [];
  for (const label of labels) {
    if (fitting.length === SUGGESTED) break;
    if (label.toLowerCase().includes(typed) || pretty(label).toLowerCase().includes(typed)) fitting.push(label);
  }
  $("labels").replaceChildren(...fitting.map(label => make("option", {value: label, label: pretty(label)})));
}

// Offer the classes whose names are most like a typed text that is none of them.
function offer() {
  const typed = $("label").value, like = nearestNames(typed, labels, 5);
  $("hint").replaceChildren(`There is no class “${typed}”.`, ...(like.length ? [" Did you mean ", make("br"), ...like.map(label => chip(label))] : []));
  $("hint").hidden = false;
}

// Return the names that are most like a text: first those that contain it, then those that share most pairs of letters.
function nearestNames(text, names, count) {
  const pairs = word => new Set([...word].map((letter, i) => letter + (word[i + 1] || "")));
  const wanted = pretty(text).toLowerCase(), own = pairs(wanted);
  const scored = names.map(name => {
    const other = pretty(name).toLowerCase();
    if (other.includes(wanted)) return [2, name];
    const shared = pairs(other);
    return [2 * [...own].filter(pair => shared.has(pair)).length / (own.size + shared.size), name];
  });
  return scored.filter(([score]) => score > 0.3).sort((a, b) => b[0] - a[0]).slice(0, count).map(([, name]) => name);
}

// Show what is searched from: the image or the item.
function draw() {
  const full = query.kind !== "start";
  $("drop").classList.toggle("full", full);
  $("invite").hidden = full;
  $("again").hidden = !full || !about.images;
  $("query").hidden = !full;
  if (query.kind === "image") $("query").src = URL.createObjectURL(images.get(query.key));
  if (query.kind === "item") $("query").src = thumbnail(query.id);
  $("query").alt = full ? "The query" : "";
  $("from").hidden = !full;
  if (query.kind === "item") $("from").replaceChildren("Searching from ", make("b", {textContent: query.label != null ? pretty(plain(query.label)) : query.id}));
  if (query.kind === "image") $("from").replaceChildren("Searching with ", make("b", {textContent: query.name || "a pasted image"}));
}

// Show the server's thumbnail of an upload whose format the browser cannot show, such as TIFF.
async function preview() {
  $("query").hidden = true;
  if (query.kind !== "image" || $("query").src.startsWith("data:")) return;
  const {key} = query;
  const response = await fetch("/api/preview", {method: "POST", body: images.get(key)});
  if (!response.ok || query.key !== key) return;
  const reader = new FileReader();
  reader.onload = () => { if (query.key === key) { $("query").src = reader.result; $("query").hidden = false; } };
  reader.readAsDataURL(await response.blob());
}

function go(next, keep = true) {
  query = next;
  if (keep) history.pushState(next, "");
  draw();
  if (matchMedia("(max-width: 760px)").matches || scrollY > 200) scrollTo({top: 0, behavior: "smooth"});
  return search();
}

function take(file) {
  if (!file || !about.images) return;
  const key = `${Date.now()}-${images.size}`;
  images.set(key, file);
  go({kind: "image", key, name: file.name});
}

const first = list => [...(list || [])].find(file => file.type.startsWith("image/")) || (list || [])[0];
$("drop").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => { take($("file").files[0]); $("file").value = ""; });
for (const kind of ["dragenter", "dragover"]) addEventListener(kind, event => { event.preventDefault(); document.body.classList.add("over"); });
addEventListener("dragleave", event => { if (!event.relatedTarget) document.body.classList.remove("over"); });
addEventListener("drop", event => { event.preventDefault(); document.body.classList.remove("over"); take(first(event.dataTransfer.files)); });
addEventListener("paste", event => { const file = first(event.clipboardData.files); if (file) { event.preventDefault(); take(file); } });
$("query").addEventListener("error", preview);
$("settings").addEventListener("submit", event => event.preventDefault());
for (const id of ["count", "distinct", "where"]) $(id).addEventListener("change", search);
for (const kind of ["focus", "input"]) $("label").addEventListener(kind, suggest);
$("label").addEventListener("input", () => { if (!$("label").value || labels.includes($("label").value)) search(); });
$("label").addEventListener("change", () => { if ($("label").value && !labels.includes($("label").value)) offer(); else search(); });
$("large-close").addEventListener("click", () => $("larger").close());
$("larger").addEventListener("click", event => { if (event.target === $("larger")) $("larger").close(); });
addEventListener("popstate", event => {
  const state = event.state || {kind: "start"};
  recall();
  go(state.kind === "image" && !images.has(state.key) ? {kind: "start"} : state, false);
});

addEventListener("keydown", event => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName) && document.activeElement.type !== "checkbox";
  if ($("larger").open) return;
  if (event.key === "Escape" && $("label").value) { $("label").value = ""; search(); return; }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") { event.preventDefault(); $("label").focus(); $("label").select(); }
  if (event.key.toLowerCase() === "o") { event.preventDefault(); $("drop").click(); }
  const cards = [...document.querySelectorAll(".hit")], at = cards.indexOf(document.activeElement);
  if (event.key.toLowerCase() === "v" && at >= 0) { event.preventDefault(); enlarge(hits[at]); }
  const moves = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns(), ArrowDown: columns()};
  if (!(event.key in moves)) return;
  if (at < 0 && event.target !== document.body) return;
  const next = cards[at < 0 ? 0 : at + moves[event.key]];
  if (next) { event.preventDefault(); next.focus(); next.scrollIntoView({block: "nearest"}); }
});
const columns = () => getComputedStyle($("grid")).gridTemplateColumns.split(" ").length;

(async () => {
  try {
    const [what, found] = await Promise.all([ask("/api/about"), ask("/api/labels")]);
    about = what;
    labels = found.map(entry => String(entry.label));
    const count = new Intl.NumberFormat("en").format;
    $("about").textContent = `${count(about.vectors)} ${about.images ? "images" : "vectors"}` + (labels.length ? `, ${count(labels.length)} classes` : "");
    suggest();
    $("label").closest("label").hidden = !labels.length;
    $("apart").hidden = !about.cosine;
    if (!about.images) {
      $("invite").replaceChildren(make("small", {textContent: "This index has no model. Search from one of its items."}));
      $("drop").disabled = true;
      $("drop").removeAttribute("aria-label");
    }
  } catch (error) {
    $("problem").textContent = sentence(error.message);
    $("problem").hidden = false;
    return;
  }
  const item = new URLSearchParams(location.search).get("item");
  query = item ? {kind: "item", id: item} : {kind: "start"};
  recall();
  draw();
  search();
})();
