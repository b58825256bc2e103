// Tells whether the page is live, and lets its times go on. Everything else that moves here is htmx's doing.
"use strict";
(function () {
  for (const log of document.querySelectorAll("pre.log")) log.scrollTop = log.scrollHeight;
  const graph = document.querySelector(".graph"); // it may be wider than the page: begin in its middle, or at what is chosen
  if (graph) {
    graph.scrollLeft = (graph.scrollWidth - graph.clientWidth) / 2;
    const chosen = graph.querySelector(".chosen");
    if (chosen) {
      const box = chosen.getBoundingClientRect(), around = graph.getBoundingClientRect();
      graph.scrollLeft += box.left + box.width / 2 - around.left - around.width / 2;
      graph.scrollTop += box.top + box.height / 2 - around.top - around.height / 2;
    }
  }
  const find = document.getElementById("find");
  if (find) find.addEventListener("input", function () { // another search begins at its first page; a reload keeps it
    document.getElementById("find-page").value = "1";
    const fields = Array.from(new FormData(find)).filter(function (field) { return field[1]; });
    history.replaceState(null, "", find.action + (fields.length ? "?" + new URLSearchParams(fields) : ""));
  });
  const badge = document.getElementById("live");
  if (!badge) return; // nothing moves here
  const words = document.getElementById("live-words");
  const skew = Date.parse(document.body.dataset.now) - Date.now(); // the server's clock is the one that counts
  function show(state) {
    if (badge.dataset.state === state) return;
    badge.dataset.state = state;
    words.textContent = badge.dataset[state];
  }
  const WORDS = {
    en: { s: "s", m: "m", h: "h", d: "d", gap: " ", past: "past its limit", soon: "any moment",
      left: function (span) { return span + " left"; }, about: function (span) { return "~" + span + " left"; },
      percent: function (value) { return value + " percent of its time limit"; } },
    ja: { s: "秒", m: "分", h: "時間", d: "日", gap: "", past: "制限時間を超過", soon: "まもなく",
      left: function (span) { return "残り" + span; }, about: function (span) { return "残り約" + span; },
      percent: function (value) { return "制限時間の " + value + " パーセント"; } },
  };
  const say = WORDS[document.documentElement.lang] || WORDS.en;
  // The same words as span() in board.py: 45s, 6m, 4h 12m, 9h, 3d 4h.
  function span(ms) {
    const seconds = Math.max(0, Math.floor(ms / 1000));
    if (seconds < 60) return seconds + say.s;
    const minutes = Math.floor(seconds / 60);
    if (minutes < 60) return minutes + say.m;
    const hours = Math.floor(minutes / 60);
    if (hours < 24) return minutes % 60 && hours < 5 ? hours + say.h + say.gap + (minutes % 60) + say.m : hours + say.h;
    const days = Math.floor(hours / 24);
    return hours % 24 && days < 10 ? days + say.d + say.gap + (hours % 24) + say.h : days + say.d;
  }
  function words_of(time, now) {
    const at = Date.parse(time.dateTime);
    switch (time.dataset.say) {
      case "ago": return span(now - at);
      case "left": return at <= now ? say.past : say.left(span(at - now));
      case "about": return at <= now ? say.soon : say.about(span(at - now));
    }
    return time.textContent;
  }
  function tick() {
    const now = Date.now() + skew;
    for (const time of document.querySelectorAll("time[data-say]")) {
      const said = words_of(time, now);
      if (time.textContent !== said) time.textContent = said;
    }
    for (const bar of document.querySelectorAll(".tile progress")) {
      const [since, until] = bar.parentElement.querySelectorAll("time");
      if (!since || !until) continue;
      const from = Date.parse(since.dateTime);
      const part = (100 * (now - from)) / (Date.parse(until.dateTime) - from);
      bar.value = Math.min(100, Math.max(0, Math.round(part)));
      bar.setAttribute("aria-label", say.percent(bar.value));
    }
  }
  let refused = null; // the element whose request was refused last
  document.body.addEventListener("htmx:sseOpen", function () { show("live"); });
  document.body.addEventListener("htmx:sseError", function () { show("lost"); });
  // Pages that ask again instead of listening: an answer is life. What was unfolded stays so.
  document.body.addEventListener("htmx:afterRequest", function (event) {
    show(event.detail.successful ? "live" : "lost");
    const toast = document.getElementById("toast");
    if (event.detail.successful && event.detail.elt === refused) { toast.replaceChildren(); shown.delete(toast); }
  });
  // What has not changed is left alone: nobody's click or reading is disturbed. A log stays at its end.
  const shown = new WeakMap();
  const passing = /[^<>]*(?=<\/time>)/g;
  document.body.addEventListener("htmx:beforeSwap", function (event) {
    const target = event.detail.target || event.target; // what the server pushes has none of its own
    if (event.detail.isError && target.id === "toast") { // a refusal, as a note until the same asks and is answered
      event.detail.shouldSwap = true;
      refused = event.detail.requestConfig.elt;
    }
    if (event.detail.xhr && event.detail.shouldSwap) {
      const face = event.detail.xhr.responseText.replace(passing, "");
      if (shown.get(target) === face) { event.detail.shouldSwap = false; return; }
      shown.set(target, face);
    }
    keep(target);
  });
  // Parts for other places in one answer: each is left alone, too, while it is the same.
  document.body.addEventListener("htmx:oobBeforeSwap", function (event) {
    const face = event.detail.fragment.innerHTML.replace(passing, "");
    const target = event.detail.target;
    if (shown.get(target) === face) { event.detail.shouldSwap = false; return; }
    shown.set(target, face);
    keep(target);
  });
  function keep(target) {
    if (target.matches("pre")) target.dataset.end = target.scrollHeight - target.scrollTop - target.clientHeight < 8 ? "1" : "";
    const open = Array.from(target.querySelectorAll("details[open]"), function (one) { return one.id; });
    target.dataset.open = open.join(" ");
  }
  for (const name of ["htmx:afterSwap", "htmx:oobAfterSwap"]) document.body.addEventListener(name, function (event) {
    const target = event.detail.target || event.target;
    if (target.dataset.end) target.scrollTop = target.scrollHeight;
    for (const id of (target.dataset.open || "").split(" ")) {
      const found = id && document.getElementById(id);
      if (found) found.open = true;
    }
  });
  if (document.querySelector("[hx-trigger^=every]")) show("live"); // the page itself was an answer
  setInterval(tick, 5000);
})();
