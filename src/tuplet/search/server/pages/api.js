"use strict";
const make = (tag, text, ...children) => { const e = document.createElement(tag); if (text) e.textContent = text; e.append(...children); return e; };
const kind = schema => (schema.anyOf || [schema]).map(s => s.type).filter(t => t && t !== "null").join(" or ") + (schema.default != null && schema.default !== "" && !Array.isArray(schema.default) ? ` [${schema.default}]` : "");
const examples = {
  "/api/search/image": "curl --data-binary @photo.jpg 'ORIGIN/api/search/image?k=5'",
  "/api/search/vector": "curl --json '{\"vector\": [0.1, 0.2, …]}' 'ORIGIN/api/search/vector'",
  "/api/search/item": "curl -G ORIGIN/api/search/item --data-urlencode 'id=birds/1.jpg'",
};
fetch("/api/openapi.json").then(response => response.json()).then(description => {
  document.getElementById("about").textContent = description.info.description;
  for (const [path, methods] of Object.entries(description.paths)) for (const [method, route] of Object.entries(methods)) {
    const rows = (route.parameters || []).map(p => make("tr", "", make("td", p.name), make("td", kind(p.schema)), make("td", p.description || p.schema.description || "")));
    const statuses = Object.entries(route.responses).map(([status, r]) => `${status} ${r.description}`).join(" · ");
    const article = make("article", "", make("h2", "", make("b", method.toUpperCase()), path), make("p", route.summary), make("table", "", ...rows), make("p", statuses));
    if (examples[path]) article.append(make("pre", examples[path].replace("ORIGIN", location.origin)));
    document.getElementById("routes").append(article);
  }
});
