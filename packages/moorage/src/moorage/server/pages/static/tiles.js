// Small tiles: Tab goes from node to node, the arrow keys from GPU to GPU.
"use strict";
(function () {
  const all = document.getElementById("gpus");
  if (!all) return;
  const TILE = ".cell > a, .cell > span";
  // One tile of each node is in the order of Tab; the others are reached from it.
  function arrange(inside) {
    for (const list of inside.matches(".dots") ? [inside] : inside.querySelectorAll(".dots")) {
      list.querySelectorAll(TILE).forEach(function (tile, at) { tile.tabIndex = at ? -1 : 0; });
    }
  }
  let held = null; // where the focus was in a node that is drawn anew
  document.body.addEventListener("htmx:sseBeforeMessage", function (event) {
    const list = event.target.querySelector && event.target.querySelector(".dots");
    const at = list ? Array.from(list.querySelectorAll(TILE)).indexOf(document.activeElement) : -1;
    held = at < 0 ? null : { within: event.target, at: at };
  });
  document.body.addEventListener("htmx:sseMessage", function (event) {
    const within = event.target;
    if (!all.contains(within)) return;
    arrange(within);
    if (held && held.within === within) {
      const tile = within.querySelectorAll(TILE)[held.at];
      if (tile) tile.focus();
    }
    held = null;
  });
  all.addEventListener("keydown", function (event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!event.target.matches(TILE) || (!step && event.key !== "Home" && event.key !== "End")) return;
    const tiles = Array.from(all.querySelectorAll(TILE));
    const at = tiles.indexOf(event.target);
    const list = Array.from(event.target.closest(".dots").querySelectorAll(TILE));
    const next = event.key === "Home" ? list[0] : event.key === "End" ? list[list.length - 1] : tiles[at + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
  // How busy each GPU is: lines of a node's name and percents by place, apart from the tiles.
  const use = document.getElementById("use");
  function show(within) {
    const nodes = new Map();
    for (const line of use.textContent.split("\n")) {
      const words = line.trim().split(" ");
      if (words[0]) nodes.set("node-" + words[0], words.slice(1));
    }
    for (const card of within.matches(".node") ? [within] : all.querySelectorAll(".node")) {
      const values = nodes.get(card.getAttribute("sse-swap")) || [];
      card.querySelectorAll(".cell, .tile").forEach(function (tile, at) {
        const known = values[at] !== undefined && values[at] !== "-";
        tile.classList.toggle("measured", known);
        if (!known) return;
        tile.style.setProperty("--use", values[at] + "%");
        const named = tile.querySelector("[aria-label]"), words = tile.querySelector(".use");
        if (words) words.textContent = values[at] + " %";
        else if (named) named.setAttribute("aria-label", named.getAttribute("aria-label").replace(/ · \d+ %$/, "") + " · " + values[at] + " %");
      });
    }
  }
  document.body.addEventListener("htmx:sseMessage", function (event) {
    if (event.target === use || all.contains(event.target)) show(event.target === use ? all : event.target);
  });
  arrange(all);
  show(all);
})();
