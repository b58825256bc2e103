// Lists of which the server sends the rows that changed: "12 11 9" (all rows, in their order), then these rows.
"use strict";
(function () {
  const LINKS = "a, button";
  document.body.addEventListener("htmx:sseBeforeMessage", function (event) {
    if (!event.detail.type.startsWith("rows-")) return;
    event.preventDefault(); // htmx would put the rows in place of the list
    const body = event.target.querySelector("tbody");
    const [order, ...lines] = event.detail.data.split("\n");
    const sent = document.createElement("template");
    sent.innerHTML = lines.join("\n");
    if (body) show(body, order.split(" "), sent.content);
  });
  // Rows that stay are not touched: nobody's click, focus or reading is disturbed.
  function show(body, order, sent) {
    const rows = new Map(Array.from(body.rows, function (row) { return [row.dataset.row, row]; }));
    for (const row of Array.from(sent.children)) {
      const old = rows.get(row.dataset.row);
      if (old) replace(old, row);
      rows.set(row.dataset.row, row);
    }
    const wanted = new Set(order);
    for (const [number, row] of rows) if (!wanted.has(number)) row.remove();
    let at = body.firstElementChild;
    for (const number of order) {
      const row = rows.get(number);
      if (row === at) at = at.nextElementSibling;
      else if (row) body.insertBefore(row, at);
    }
  }
  function replace(old, row) {
    const at = Array.from(old.querySelectorAll(LINKS)).indexOf(document.activeElement);
    old.replaceWith(row);
    const link = at < 0 ? null : row.querySelectorAll(LINKS)[at];
    if (link) link.focus();
  }
})();
