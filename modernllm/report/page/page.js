"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const root = document.documentElement;
  const style = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const each = (selector, f, within = document) => within.querySelectorAll(selector).forEach(f);
  const plots = [];

  // --- theme: figures take the colours of the page

  const ON_WHITE = { ink: "#16202e", line: "#dfe4ea", card: "#ffffff" };
  const colours = () => root.dataset.printing ? ON_WHITE : ({ ink: style("--ink"), line: style("--line"), card: style("--card") });

  function themed(layout, c = colours()) {
    const axis = (a) => ({ automargin: true, gridcolor: c.line, zerolinecolor: c.line, linecolor: c.line, ...a,
      title: { ...(a || {}).title, font: { size: 12 } } });
    return {
      height: 340, margin: { l: 56, r: 12, t: 12, b: 44 }, hovermode: "closest", ...layout,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: c.ink, family: style("font-family") || "system-ui, sans-serif", size: 12 },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, groupclick: "togglegroup", font: { size: 12 } },
      hoverlabel: { bgcolor: c.card, bordercolor: c.line, font: { color: c.ink } },
      xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
    };
  }

  // which ranking is shown, where there are several: its number, "" for all
  const among = document.getElementById("among");
  const isShown = (group) => !among || among.value === "" || group === undefined || group === Number(among.value);

  const redraw = () => plots.forEach((plot) => plot.draw());

  document.querySelector("button.theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  // --- saving: pictures on white ground, and the numbers

  function picture(format) {
    return (gd) => Plotly.downloadImage(
      { data: gd.data, layout: { ...themed(gd.plain, ON_WHITE), paper_bgcolor: "#fff", plot_bgcolor: "#fff" } },
      { format, filename: gd.id, width: Math.max(700, gd.clientWidth), height: gd.clientHeight, scale: format === "png" ? 2 : 1 });
  }

  function csv(gd) {
    const quote = (v) => (v === undefined || v === null ? "" : `"${String(v).replaceAll('"', '""')}"`);
    const plain = (s) => { const t = document.createElement("textarea"); t.innerHTML = s || ""; return t.value; };
    const rows = [["trace", "x", "y", "z"]];
    gd.data.forEach((trace) => {
      if (trace.z) trace.z.forEach((row, i) => row.forEach((z, j) => rows.push([plain(trace.name), trace.x[j], plain(trace.y[i]), z])));
      else (trace.x || []).forEach((x, i) => rows.push([plain(trace.name), x, trace.y[i], ""]));
    });
    return rows.map((row) => row.map(quote).join(",")).join("\n") + "\n";
  }

  function saveCsv(gd) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv(gd)], { type: "text/csv" }));
    link.download = `${gd.id}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  const icon = (text) => ({ width: 34, height: 20,
    svg: `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 34 20"><text x="17" y="15" font-size="13" font-weight="700" text-anchor="middle" font-family="sans-serif">${text}</text></svg>` });
  const config = {
    displaylogo: false,
    modeBarButtonsToRemove: ["toImage", "select2d", "lasso2d", "autoScale2d"],
    modeBarButtonsToAdd: [
      { name: "svg", title: "Save as SVG", icon: icon("SVG"), click: picture("svg") },
      { name: "png", title: "Save as PNG", icon: icon("PNG"), click: picture("png") },
      { name: "csv", title: "Save its numbers as CSV", icon: icon("CSV"), click: saveCsv },
    ],
  };

  // names beside an axis leave room for what they name
  function wrapped(text, width) {
    const lines = [""];
    text.split(" ").forEach((word) => {
      const line = lines[lines.length - 1];
      if (line && line.length + word.length >= width) lines.push(word);
      else lines[lines.length - 1] = line ? `${line} ${word}` : word;
    });
    return lines.join("<br>");
  }

  function named(data, layout) {
    if ((layout.yaxis || {}).type !== "category") return layout;
    const names = [...new Set(data.flatMap((trace) => trace.y))];
    const ticktext = names.map((name) => wrapped(name, innerWidth < 600 ? 15 : 36));
    return { ...layout, yaxis: { ...layout.yaxis, tickmode: "array", tickvals: names, ticktext } };
  }

  function plot(div, figure) {
    const draw = () => {
      const { data: full, layout: whole } = figure();
      const narrow = innerWidth < 600;
      const data = full.filter((trace) => isShown((trace.meta || {}).group)).map((trace) => (narrow && trace.texttemplate && trace.x.length > 3 ? { ...trace, texttemplate: "" } : trace));
      const layout = { ...named(data, whole), width: div.clientWidth || undefined };
      div.plain = layout;
      return Plotly.react(div, data, themed(layout), config);
    };
    plots.push({ div, draw });
    return draw;
  }

  // --- learning curves

  const FEW = 20;
  const UNITS = { step: "step", tokens: "tokens", flops: "training FLOPs", time: "seconds at the run's mean speed" };
  const KINDS = { loss: "training loss", val_loss: "validation loss", grad_norm: "gradient norm before clipping" };
  const escape = (s) => s.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const fade = (hex, alpha) => `rgba(${[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",")},${alpha})`;

  function smoothed(values, width) {
    if (width < 2) return values;
    return values.map((v, i) => {
      if (v === null) return null;
      const near = values.slice(Math.max(0, i - width + 1), i + 1).filter((x) => x !== null);
      return near.reduce((a, b) => a + b, 0) / near.length;
    });
  }

  const along = (steps, run, x) => (x === "step" ? steps : steps.map((s) => (run[x] === null ? null : s * run[x])));

  function curveTraces(all, kind, set) {
    const traces = [];
    const width = 2 ** set.smooth - 1;
    const named = new Set();
    const here = (of) => isShown(all.arms[of.arm].group);
    const shown = all.runs.filter((run) => here(run) && (set.runs === "all" || run.best || (set.runs === "broke" && run.end !== null)));
    const bands = kind === "val_loss" || set.runs === "all" ? [] : all.bands.filter((b) => b && here(b));
    const banded = new Set(bands.map((b) => b.arm));
    bands.forEach((band) => {
      const arm = all.arms[band.arm], of = band[kind], x = along(band.step, band, set.x), name = escape(arm.name);
      const common = { legendgroup: arm.name, name, hoverinfo: "skip", mode: "lines" };
      traces.push({ ...common, x, y: smoothed(of.high, width), line: { width: 0 }, showlegend: false });
      traces.push({ ...common, x, y: smoothed(of.low, width), line: { width: 0 }, fill: "tonexty", fillcolor: fade(arm.colour, 0.17), showlegend: false });
      traces.push({ legendgroup: arm.name, name, mode: "lines", x, y: smoothed(of.mean, width), line: { color: arm.colour, width: 2.4 },
        hovertemplate: "%{x}: %{y:.4f}<extra>%{fullData.name}, mean of seeds</extra>" });
      named.add(band.arm);
    });
    const broken = [];
    shown.forEach((run) => {
      const arm = all.arms[run.arm], [steps, values] = run.series[kind], ended = run.end !== null;
      if (!steps.length) return;
      const many = banded.has(run.arm);
      if (many && !ended && set.seeds === "band") return;
      const x = along(steps, run, set.x), y = smoothed(values, kind === "val_loss" ? 1 : width);
      traces.push({ legendgroup: arm.name, name: escape(arm.name), showlegend: !named.has(run.arm), x, y,
        mode: kind === "val_loss" ? "lines+markers" : "lines", marker: { size: 4 },
        line: { color: fade(arm.colour, many && !ended ? 0.35 : 0.85), width: many && !ended ? 1 : 1.5, dash: ended ? "dot" : "solid" },
        hovertemplate: `%{x}: %{y:.4f}<br>lr ${run.lr}, seed ${run.seed}, ${run.word}<extra>%{fullData.name}</extra>` });
      named.add(run.arm);
      const last = values.findLastIndex((v) => v !== null);
      if (ended && last >= 0) broken.push({ arm, run, x: x[last], y: y[last] });
    });
    broken.forEach((end) => traces.push({ legendgroup: end.arm.name, name: `${escape(end.arm.name)}: ${end.run.word}`, showlegend: false,
      mode: "markers", x: [end.x], y: [end.y], marker: { symbol: "x", size: 11, color: end.arm.colour, line: { width: 1, color: style("--card") } },
      hovertemplate: `${end.run.word} at step ${end.run.end}, lr ${end.run.lr}, seed ${end.run.seed}<extra>%{fullData.name}</extra>` }));
    return traces;
  }

  function control(parent, label, options, value, change) {
    const box = document.createElement("label"), select = document.createElement("select");
    select.setAttribute("aria-label", label);
    for (const [key, text] of Object.entries(options)) select.add(new Option(text, key, false, key === value));
    select.addEventListener("change", () => change(select.value));
    box.append(label, select);
    parent.append(box);
  }

  function curvePanel(div, all, first) {
    const set = { kind: first, x: all.x, smooth: 2, xlog: "linear", ylog: first === "grad_norm" ? "log" : "linear", runs: all.runs.filter((r) => r.end !== null && !r.best).length > FEW ? "best" : "broke", seeds: all.runs.filter((r) => r.best).length > 30 ? "band" : "runs" };
    const bar = document.createElement("div");
    bar.className = "controls";
    div.before(bar);
    const draw = plot(div, () => ({ data: curveTraces(all, set.kind, set), layout: { height: 420 + 19 * Math.max(0, Math.ceil(all.arms.filter((arm) => isShown(arm.group)).length / 6) - 1),
      xaxis: { title: { text: UNITS[set.x] }, type: set.xlog, exponentformat: "SI" }, yaxis: { title: { text: KINDS[set.kind] }, type: set.ylog } } }));
    const choose = (name) => (value) => { set[name] = name === "smooth" ? Number(value) : value; draw(); };
    if (first === "loss") control(bar, "of", { loss: "training loss", val_loss: "validation loss" }, set.kind, choose("kind"));
    control(bar, "over", { step: "steps", tokens: "tokens", flops: "FLOPs", time: "time" }, set.x, choose("x"));
    control(bar, "runs", { best: "at the best learning rate", broke: "those, and any that broke", all: "all" }, set.runs, choose("runs"));
    control(bar, "seeds", { runs: "band and lines", band: "band" }, set.seeds, choose("seeds"));
    control(bar, "smooth", { 0: "not", 2: "a little", 3: "more", 4: "much" }, String(set.smooth), choose("smooth"));
    control(bar, "x", { linear: "linear", log: "log" }, set.xlog, choose("xlog"));
    control(bar, "y", { linear: "linear", log: "log" }, set.ylog, choose("ylog"));
    return draw;
  }

  // --- tables

  const key = (row, column) => {
    const value = row.cells[column].dataset.order;
    return value !== "" && !Number.isNaN(Number(value)) ? Number(value) : value === "inf" ? Infinity : value;
  };

  function sortable(table) {
    each("thead th", (th, column) => {
      th.querySelector("button").addEventListener("click", () => {
        const up = th.getAttribute("aria-sort") !== "ascending";
        each("thead th", (other) => other.setAttribute("aria-sort", "none"), table);
        th.setAttribute("aria-sort", up ? "ascending" : "descending");
        const compared = (a, b) => {
          const [x, y] = [key(a, column), key(b, column)];
          const order = typeof x === "number" && typeof y === "number" ? (x === y ? 0 : x - y) : String(x).localeCompare(String(y), undefined, { numeric: true });
          return up ? order : -order;
        };
        for (const body of table.tBodies) body.append(...[...body.rows].filter((row) => row.className !== "group").sort(compared));
      });
    }, table);
  }

  function filterable(table) {
    const input = document.querySelector(`[data-filters="${table.id}"]`);
    if (!input) return;
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/);
      for (const body of table.tBodies) {
        const group = body.querySelector(".group"), name = group ? group.textContent : "";
        const rows = [...body.rows].filter((row) => row !== group);
        rows.forEach((row) => { row.hidden = !words.every((word) => `${name} ${row.textContent}`.toLowerCase().includes(word)); });
        if (group) group.hidden = rows.every((row) => row.hidden);
      }
    });
  }

  ["arms", "runs"].map((id) => document.getElementById(id)).filter(Boolean).forEach((table) => { sortable(table); filterable(table); });

  // --- draw one after the other, so that the page answers meanwhile

  const queue = [];
  const stored = document.getElementById("figures-data") ? read("figures-data") : {};
  const all = document.getElementById("curves-data") ? read("curves-data") : null;
  if (among) among.addEventListener("change", redraw);
  each(".plot", (div) => {
    if (div.dataset.curves) queue.push(curvePanel(div, all, div.dataset.curves));
    else queue.push(plot(div, () => stored[div.id]));
  });
  const flush = () => { while (queue.length) queue.shift()(); root.dataset.ready = "true"; };
  // a window that is resized, a phone that is turned
  let waiting = 0;
  const fits = () => plots.every(({ div }) => !div._fullLayout || div._fullLayout.width === div.clientWidth);
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => fits() || redraw(), 120); });

  addEventListener("beforeprint", () => { flush(); each("details", (d) => { d.open = true; }); root.dataset.printing = "true"; redraw(); });
  addEventListener("afterprint", () => { delete root.dataset.printing; redraw(); });
  const next = () => { const draw = queue.shift(); if (!draw) { root.dataset.ready = "true"; return; } draw(); setTimeout(next, 0); };
  next();
  window.page = { csv: (id) => csv(document.getElementById(id)), plots };
})();
