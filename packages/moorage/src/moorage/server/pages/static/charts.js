// Draws every <figure data-chart> with uPlot: from the JSON inside it, or from the address in data-src.
// The figure's table says the same, for screen readers and without JavaScript; where there is none, one is made.
//
// JSON: {"times": [seconds since 1970], "unit": "%", "least": 0, "most": 100, "daily": the times are days of UTC,
//        "series": [{"name": "mean", "values": [numbers or null], "area": true}]}
"use strict";
(function () {
  const ROWS = 24; // of a table that is made here
  const HEIGHT = 180; // pixels
  const DASHES = [[], [6, 4], [2, 3], [9, 3, 2, 3], [1, 2], [12, 4]];
  const drawn = new Map(); // figure → {plot, data, watch}
  const language = document.documentElement.lang || "en";
  const words = language === "ja"
    ? { time: "時刻", day: "日付", none: "測定なし", table: "表で見る", lost: "グラフのデータを取得できません。" }
    : { time: "Time", day: "Day", none: "not measured", table: "As a table", lost: "The data of this chart could not be fetched." };

  // A colour of moorage.css as rgb(): a canvas knows no variables.
  function color(figure, name) {
    const probe = document.createElement("i");
    probe.style.color = "var(" + name + ")";
    figure.append(probe);
    const computed = getComputedStyle(probe).color;
    probe.remove();
    return computed;
  }

  function shown(value, unit) {
    if (value === null || value === undefined) return words.none;
    const number = value.toLocaleString(language, { maximumFractionDigits: value < 10 ? 2 : 1 });
    return unit ? number + (unit === "%" ? " %" : " " + unit) : number;
  }
  function moment(seconds, daily) {
    if (daily) return day(new Date(seconds * 1000), "UTC");
    return new Date(seconds * 1000).toLocaleString(language, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false });
  }
  function day(date, zone) {
    return date.toLocaleDateString(language, { month: "short", day: "numeric", timeZone: zone });
  }
  // The times along the axis: the day where it begins or the range is long, else the hour; seconds where they tell apart.
  function ticks(_, splits) {
    const long = splits.length > 1 && splits[1] - splits[0] >= 86400;
    const close = splits.length > 1 && splits[1] - splits[0] < 60;
    return splits.map(function (at) {
      const date = new Date(at * 1000);
      if (long || (!close && date.getHours() === 0 && date.getMinutes() === 0)) return day(date);
      return date.toLocaleTimeString(language, Object.assign({ hour: "2-digit", minute: "2-digit", hour12: false }, close ? { second: "2-digit" } : {}));
    });
  }

  function options(figure, data, width) {
    const unit = data.unit || "";
    let last = data.times.length - 1; // shown while the pointer is elsewhere: the newest time with a value
    while (last > 0 && data.series.every(function (line) { return line.values[last] === null; })) last -= 1;
    const series = [{ label: data.daily ? words.day : words.time, value: function (_, at) { return at === null ? "–" : moment(at, data.daily); } }];
    data.series.forEach(function (line, at) {
      const stroke = color(figure, "--series-" + (at % 6));
      series.push({
        label: line.name, stroke: stroke, width: 1.6, dash: DASHES[at % DASHES.length], spanGaps: false,
        fill: line.area ? stroke.replace("rgb(", "rgba(").replace(")", ", 0.18)") : undefined, points: { show: data.times.length < 40, size: 4 },
        value: function (_, value) { return value === null || value === undefined ? "–" : shown(value, unit); },
      });
    });
    const faint = color(figure, "--line");
    const axis = { stroke: color(figure, "--muted"), grid: { stroke: faint, width: 1 }, ticks: { stroke: faint, width: 1, size: 4 } };
    const least = data.least === undefined || data.least === null ? 0 : data.least;
    return {
      width: width, height: HEIGHT, series: series, legend: { live: true },
      hooks: {
        ready: [function (plot) { plot.setLegend({ idx: last }); }],
        setCursor: [function (plot) { if (plot.cursor.idx === null || plot.cursor.idx === undefined) plot.setLegend({ idx: last }); }],
      },
      cursor: { points: { size: 6 }, drag: { x: false, y: false } },
      tzDate: function (at) { return data.daily ? uPlot.tzDate(new Date(at * 1000), "Etc/UTC") : new Date(at * 1000); },
      axes: [
        Object.assign({}, axis, data.daily
          ? { values: function (_, splits) { return splits.map(function (at) { return moment(at, true); }); }, space: 64, incrs: [1, 2, 7, 14, 28].map(function (days) { return days * 86400; }) }
          : { values: ticks, space: 64 }),
        Object.assign({}, axis, { size: 70, values: function (_, splits) { return splits.map(function (value) { return shown(value, unit); }); } }),
      ],
      scales: { x: { time: true }, y: { range: function (_, low, high) {
        const top = data.most === undefined || data.most === null ? high * 1.08 : data.most;
        return [Math.min(least, low === null ? least : low), top > least ? top : least + 1];
      } } },
    };
  }

  function draw(figure, data) {
    forget(figure);
    let place = figure.querySelector(".chart-place");
    if (!place) {
      place = document.createElement("div");
      place.className = "chart-place";
      place.setAttribute("aria-hidden", "true"); // the table is for those who do not see it
      const caption = figure.querySelector("figcaption");
      if (caption) caption.after(place); else figure.prepend(place);
    }
    place.replaceChildren();
    const width = Math.max(200, Math.floor(place.clientWidth));
    const plot = new uPlot(options(figure, data, width), [data.times].concat(data.series.map(function (line) { return line.values; })), place);
    const watch = new ResizeObserver(function () {
      const wide = Math.max(200, Math.floor(place.clientWidth));
      if (wide !== plot.width) plot.setSize({ width: wide, height: HEIGHT });
    });
    watch.observe(place);
    drawn.set(figure, { plot: plot, data: data, watch: watch });
    if (!figure.querySelector("table:not(.u-legend)")) figure.append(table(figure, data));
    figure.dataset.drawn = "1";
  }

  function forget(figure) {
    const known = drawn.get(figure);
    if (!known) return;
    known.watch.disconnect();
    known.plot.destroy();
    drawn.delete(figure);
  }

  function cell(row, kind, text) {
    const made = document.createElement(kind);
    made.textContent = text;
    if (kind === "th") made.scope = row.parentElement && row.parentElement.tagName === "THEAD" ? "col" : "row";
    row.append(made);
  }
  function table(figure, data) {
    const details = document.createElement("details");
    details.className = "chart-table";
    const summary = document.createElement("summary");
    summary.textContent = words.table;
    const made = document.createElement("table");
    const caption = figure.querySelector("figcaption");
    if (caption) { const name = made.createCaption(); name.className = "spoken"; name.textContent = caption.textContent.trim(); }
    const head = made.createTHead().insertRow();
    cell(head, "th", data.daily ? words.day : words.time);
    for (const line of data.series) cell(head, "th", line.name);
    const body = made.createTBody();
    const step = Math.max(1, Math.ceil(data.times.length / ROWS));
    for (let at = data.times.length - 1; at >= 0; at -= step) {
      const row = body.insertRow();
      cell(row, "th", moment(data.times[at], data.daily));
      for (const line of data.series) cell(row, "td", shown(line.values[at], data.unit));
    }
    details.append(summary, made);
    return details;
  }

  async function start(figure) {
    figure.dataset.drawn = "0"; // at work
    const inside = figure.querySelector("script[type='application/json']");
    try {
      let data = inside ? JSON.parse(inside.textContent) : null;
      if (!data && figure.dataset.src) {
        const answer = await fetch(figure.dataset.src, { credentials: "same-origin", headers: { accept: "application/json" } });
        if (!answer.ok) throw new Error(String(answer.status));
        data = await answer.json();
      }
      if (data && data.times && data.times.length && figure.isConnected) draw(figure, data);
    } catch (error) {
      const note = document.createElement("p");
      note.className = "quiet";
      note.textContent = words.lost;
      figure.append(note);
    }
  }

  function look() {
    for (const figure of drawn.keys()) if (!figure.isConnected) forget(figure); // its part of the page was replaced
    for (const figure of document.querySelectorAll("figure[data-chart]:not([data-drawn])")) start(figure);
  }
  function again() { for (const [figure, known] of Array.from(drawn)) draw(figure, known.data); }

  document.body.addEventListener("htmx:afterSwap", look);
  document.body.addEventListener("htmx:oobAfterSwap", look);
  document.body.addEventListener("htmx:sseMessage", look);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  new MutationObserver(again).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  look();
})();
