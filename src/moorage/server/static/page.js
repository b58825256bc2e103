// Tells whether the page is live. Everything else that moves here is htmx's doing.
"use strict";
(function () {
  const badge = document.getElementById("live");
  const words = document.getElementById("live-words");
  function show(state) {
    if (badge.dataset.state === state) return;
    badge.dataset.state = state;
    words.textContent = badge.dataset[state];
  }
  document.body.addEventListener("htmx:sseOpen", function () { show("live"); });
  document.body.addEventListener("htmx:sseError", function () { show("lost"); });
})();
