"use strict";
// The crash point: what of the run must be there, may be lost, or was not done when the power goes after a number of calls.
(function () {
  const run = JSON.parse(document.getElementById("run").textContent);
  const byId = (id) => document.getElementById(id);
  const calls = run.calls, models = run.models, shows = run.shows;
  const point = byId("point"), model = byId("model"), show = byId("show"), said = byId("said");
  const list = byId("calls"), lanes = byId("lanes"), ROW = 24, LANES_MAX = 12;
  const threads = Array.from(new Set(calls.map((c) => c[2]))).slice(0, LANES_MAX);
  const laneOf = new Map(threads.map((t, i) => [t, i]));
  const SIGNS = { durable: "●", pending: "◌", lost: "○", torn: "◐", after: "·", none: "–" };
  const WORDS = {
    durable: "durable", pending: "may be lost", lost: "lost in this finding", torn: "torn in this finding",
    after: "not done yet", none: "nothing to keep",
  };

  const option = (select, text, value) => {
    const item = document.createElement("option");
    item.textContent = text;
    item.value = value;
    select.append(item);
  };
  models.forEach((m, i) => option(model, m.name, i));
  option(show, "none", "");
  shows.forEach((f, i) => option(show, f.id + " on " + f.model, i));
  point.max = calls.length;

  let at = 0, found = null;
  const numbers = { durable: new Set(), lost: new Set(), torn: new Set() };

  // What the call at position i is when the power goes after `at` calls.
  const state = (i) => {
    if (i >= at) return "after";
    if (found) {
      const number = calls[i][0];
      if (numbers.lost.has(number)) return "lost";
      if (numbers.torn.has(number)) return "torn";
      if (numbers.durable.has(number)) return "durable";
    }
    const kept = models.length ? models[model.value].durable[i] : null;
    if (kept === null || kept === undefined) return "none";
    return kept >= 0 && kept <= at ? "durable" : "pending";
  };

  const rows = document.createElement("div");
  list.append(rows);
  rows.style.height = calls.length * ROW + "px";
  const drawList = () => {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 5);
    const last = Math.min(calls.length, first + Math.ceil(list.clientHeight / ROW) + 10);
    const shown = [];
    for (let i = first; i < last; i++) {
      const row = document.createElement("div"), kind = state(i), call = calls[i];
      row.className = "row " + kind + (i + 1 === at ? " last" : "");
      row.style.top = i * ROW + "px";
      row.dataset.position = i + 1;
      row.textContent = SIGNS[kind] + " #" + call[0] + " " + call[1] + (call[3] ? "   " + call[3] : "");
      row.title = WORDS[kind] + ", thread " + call[2];
      shown.push(row);
    }
    rows.replaceChildren(...shown);
  };

  const drawLanes = () => {
    const scale = window.devicePixelRatio || 1, width = lanes.clientWidth, height = lanes.clientHeight;
    lanes.width = width * scale;
    lanes.height = height * scale;
    const pen = lanes.getContext("2d"), style = getComputedStyle(document.body);
    pen.scale(scale, scale);
    const colour = { after: style.getPropertyValue("--line"), none: style.getPropertyValue("--line") };
    colour.durable = style.getPropertyValue("--ok");
    colour.pending = style.getPropertyValue("--may");
    colour.lost = colour.torn = style.getPropertyValue("--bad");
    const high = height / Math.max(1, threads.length), step = width / Math.max(1, calls.length);
    const drawn = new Set();
    for (let i = 0; i < calls.length; i++) {
      const lane = laneOf.get(calls[i][2]) || 0, x = Math.floor(i * step), kind = state(i);
      const mark = (x * LANES_MAX + lane) * 8 + Object.keys(SIGNS).indexOf(kind);
      if (drawn.has(mark)) continue;
      drawn.add(mark);
      pen.fillStyle = colour[kind];
      // Shape as well as colour: what is durable is a full bar, what may be lost a low one.
      const part = kind === "durable" ? 0.8 : kind === "pending" ? 0.4 : 0.6;
      pen.fillRect(x, lane * high + high * (0.9 - part), Math.max(1, step - 1), high * part);
    }
    pen.fillStyle = style.color;
    pen.fillRect(Math.min(width - 2, at * step), 0, 2, height);
  };

  const tell = () => {
    let durable = 0, pending = 0;
    for (let i = 0; i < at; i++) {
      const kind = state(i);
      durable += kind === "durable";
      pending += kind === "pending" || kind === "lost" || kind === "torn";
    }
    const last = at > 0 ? "after #" + calls[at - 1][0] + " " + calls[at - 1][1] : "before the first call";
    said.textContent = "Power cut " + last + ": " + durable + " calls are durable, " + pending + " may be lost";
    point.setAttribute("aria-valuetext", said.textContent);
  };

  const element = (parent, name, text, kind) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    parent.append(made);
    return made;
  };

  // One side of a row: number or offset, sign, content.
  const cell = (row, bytes, side, kind, sign) => {
    if (!side) return element(row, "td", "", "void");
    const at = bytes ? side[0].toString(16).padStart(6, "0") : String(side[0]);
    const made = element(row, "td", undefined, kind);
    element(made, "span", at + " " + sign, "at");
    made.append(" " + side[1]);
  };
  const drawFile = (into, file) => {
    const [path, written, left, bytes, cut, rows] = file;
    const table = element(into, "table", undefined, "sides");
    element(table, "caption", path);
    const heads = element(element(table, "thead"), "tr"), body = element(table, "tbody");
    element(heads, "th", "written: " + (written === null ? "no such file" : written)).scope = "col";
    element(heads, "th", "after the cut: " + (left === null ? "missing" : left)).scope = "col";
    for (const sides of rows) {
      const row = element(body, "tr"), same = sides.length === 1;
      cell(row, bytes, sides[0], same ? "" : "lost", same ? " " : "−");
      cell(row, bytes, same ? sides[0] : sides[1], same ? "" : "found", same ? " " : "+");
    }
    if (cut) {
      const row = element(body, "tr");
      element(row, "td", "…");
      element(row, "td", "…");
    }
  };
  // The files that differ at the crash point: in the finding that is shown, else if nothing survives but what must.
  const sourceOf = new Map(run.sources.map((s) => [s[0], s]));
  const taken = byId("taken"), files = byId("files"), source = byId("source");
  const drawFiles = () => {
    const isFinding = found !== null && at === found.at;
    const points = models.length ? models[model.value].points : [];
    let point = null;
    for (const p of points) {
      if (p[0] > at) break;
      point = p;
    }
    const shown = isFinding ? found.files : point ? point[1] : [], more = isFinding ? found.more : point ? point[2] : 0;
    const fragment = document.createDocumentFragment();
    taken.textContent = !shown.length ? "No file differs from what was written"
      : isFinding ? "Files that differ in " + found.id : "Files that may differ: nothing survives but what must";
    for (const file of shown) drawFile(fragment, file);
    if (more) element(fragment, "p", "And " + more + " more.");
    files.replaceChildren(fragment);
    source.replaceChildren();
    const lines = at > 0 ? sourceOf.get(calls[at - 1][3]) : undefined;
    if (!lines) return;
    const figure = element(source, "figure", undefined, "source");
    element(figure, "figcaption", lines[0]);
    const text = element(figure, "pre");
    lines[3].forEach((line, i) => {
      const number = lines[2] + i, shape = number === lines[1] ? "strong" : "span";
      element(text, shape, String(number).padStart(5) + "  " + line + "\n");
    });
  };

  const draw = () => {
    drawFiles();
    drawList();
    drawLanes();
    tell();
  };
  const go = (to, follow) => {
    at = Math.max(0, Math.min(calls.length, to));
    point.value = at;
    if (follow) list.scrollTop = Math.max(0, (at - 1) * ROW - list.clientHeight / 2);
    draw();
  };

  point.addEventListener("input", () => go(Number(point.value), true));
  model.addEventListener("change", () => {
    // A finding belongs to its model.
    if (found && models[model.value].name !== found.model) {
      show.value = "";
      show.dispatchEvent(new Event("change"));
    } else {
      draw();
    }
  });
  list.addEventListener("scroll", drawList);
  rows.addEventListener("click", (e) => {
    const row = e.target.closest("[data-position]");
    if (row) go(Number(row.dataset.position), false);
  });
  list.addEventListener("keydown", (e) => {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -calls.length, End: calls.length }[e.key];
    if (by === undefined) return;
    e.preventDefault();
    go(at + by, true);
  });
  const drag = (e) => {
    const box = lanes.getBoundingClientRect();
    go(Math.round((e.clientX - box.left) / box.width * calls.length), true);
  };
  lanes.addEventListener("pointerdown", (e) => {
    lanes.setPointerCapture(e.pointerId);
    drag(e);
  });
  lanes.addEventListener("pointermove", (e) => {
    if (lanes.hasPointerCapture(e.pointerId)) drag(e);
  });
  show.addEventListener("change", () => {
    found = show.value === "" ? null : shows[show.value];
    for (const kind of ["durable", "lost", "torn"]) numbers[kind] = new Set(found ? found[kind] : []);
    if (found) {
      model.value = Math.max(0, models.findIndex((m) => m.name === found.model));
      go(found.at, true);
    } else {
      draw();
    }
  });
  window.addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  byId("timeline").hidden = false;
  if (shows.length) {
    show.value = 0;
    show.dispatchEvent(new Event("change"));
  } else {
    go(calls.length, true);
  }
})();
