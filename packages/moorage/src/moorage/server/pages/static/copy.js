// Buttons that copy the text of another element: data-copy names it. Without script they stay hidden.
"use strict";
(function () {
  function reveal() {
    for (const button of document.querySelectorAll("button[data-copy][hidden]")) button.hidden = false;
  }
  document.addEventListener("click", function (event) {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    const source = document.getElementById(button.dataset.copy);
    const words = button.firstChild;
    const before = words.textContent;
    function done() {
      words.textContent = document.documentElement.lang === "ja" ? "コピーしました" : "Copied";
      setTimeout(function () { words.textContent = before; }, 2000);
    }
    function select() { // no clipboard on plain HTTP: the text is selected for Ctrl-C
      getSelection().selectAllChildren(source);
      source.focus();
    }
    if (!navigator.clipboard) { select(); return; }
    navigator.clipboard.writeText(source.textContent).then(done, select);
  });
  document.body.addEventListener("htmx:afterSwap", reveal);
  reveal();
})();
