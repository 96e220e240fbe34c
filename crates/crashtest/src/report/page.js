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

  const draw = () => {
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
  model.addEventListener("change", draw);
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
