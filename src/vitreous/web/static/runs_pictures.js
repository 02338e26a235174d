// The pictures behind a cell of a run's table, and one picture with all its maps.

import { announce, api, el, percent, svg } from "./common.js";
import { button, filled, problem } from "./parts.js";
import {
  arrow, ask, breakable, cellOf, chooser, digits, drawnPicture, filterBar, filtersOf, methodOptions,
  metricOptions, moved, nothing, partOf, refill, runAddress, saidAbout, segments, shot,
} from "./runs_parts.js";

// -- the pictures behind a cell

const ORDERS = [["worst", "worst first"], ["best", "best first"]];

export function cellView(context) {
  const { id, table, change, signal } = context;
  const controls = el("div", { class: "controls" });
  const filters = el("div", {});
  const line = el("p", { class: "note counted", role: "status" });
  const grid = el("div", { class: "shots" });
  const pager = el("nav", { class: "pager", "aria-label": "Pages" });
  const node = el("div", { class: "runcell" }, controls, filters, line, grid, pager);
  let asked = 0;
  let now = null;

  function show(state) {
    const part = partOf(table, state);
    if (!part.methods.length) {
      refill(grid, nothing(`Nothing of ${part.name} is finished yet.`));
      return;
    }
    now = { ...state, ...names(cellOf(part, state)) };
    refill(controls,
      segments("Order", ORDERS, state.order, (order) => change({ order, page: "0" })),
      chooser("method", methodOptions(part), now.method, (method) => change({ method, page: "0" }), "method"),
      chooser("metric", metricOptions(part), now.metric, (metric) => change({ metric, page: "0" }), "metric"));
    refill(filters, filterBar(part, state, change));
    fetchPage(part, now);
  }

  async function fetchPage(part, state) {
    const mine = ++asked;
    const { method, metric, order, page } = state;
    grid.setAttribute("aria-busy", "true");
    try {
      const query = { part: part.part, method, metric, order, page, ...filtersOf(state) };
      const result = await ask(id, "/cell", query, signal);
      if (mine === asked) drawPage(part, state, result);
    } catch (error) {
      const again = () => fetchPage(part, state);
      if (error.name !== "AbortError" && mine === asked) refill(grid, problem(error.message, again));
    } finally {
      if (mine === asked) grid.removeAttribute("aria-busy");
    }
  }

  function drawPage(part, state, result) {
    const { metric } = cellOf(part, state);
    const look = state.opacity === "" ? {} : { opacity: Number(state.opacity) };
    const shots = result.images.map((image) => {
      const [score, small] = [digits(image.score, metric.digits), saidAbout(image)];
      const words = `${image.name}: map of ${state.method}, score ${score}, ${small}`;
      const { canvas } = drawnPicture(id, part, image.picture, image.map, result.signed, words, look);
      const href = runAddress(id, moved(state, { view: "picture", picture: image.picture }));
      return shot(canvas, { href, key: image.picture, score, name: image.name, small, amiss: image.correct === false });
    });
    const none = result.of ? "No picture passes these filters." : "There are no pictures yet.";
    line.textContent = summary(result, metric);
    announce(line.textContent);
    refill(grid, shots.length ? shots : nothing(none));
    refill(pager, result.pages > 1 ? pages(result, state) : "");
  }

  function pages(result, state) {
    const link = (words, page, key) => {
      if (page < 0 || page >= result.pages) return el("span", { class: "dull" }, words);
      return el("a", { href: runAddress(id, moved(state, { page: String(page) })), dataset: { key } }, words);
    };
    return [
      link("← before", result.page - 1, "before"),
      el("span", {}, `page ${result.page + 1} of ${result.pages}`),
      link("after →", result.page + 1, "after"),
      link("last", result.pages - 1, "last"),
    ];
  }

  /** Where a key leads. */
  function key(name) {
    if (name === "Escape") return now && runAddress(id, moved(now, { view: "table", page: "0" }));
    const step = { ArrowLeft: "before", ArrowRight: "after" }[name];
    return step && pager.querySelector(`a[data-key=${step}]`)?.getAttribute("href");
  }

  return { node, show, key };
}

function names({ method, metric }) {
  return { method: method.name, metric: metric.name };
}

function summary(result, metric) {
  const passing = result.total === result.of ? `${result.of} pictures` : `${result.total} of ${result.of} pictures`;
  const mean = result.mean === null ? "" : `, mean ${digits(result.mean, metric.digits)}`;
  const without = result.without ? `; ${result.without} have no score and are not here` : "";
  return `${passing}${mean}${without}. Every map has its own scale.`;
}

// -- one picture

const OPACITY = "0.55";

export function pictureView(context) {
  const { id, table, change, open, signal } = context;
  const node = el("div", { class: "runpicture" });
  let links = {};
  let drawings = [];

  async function show(state) {
    const part = partOf(table, state);
    if (!part.methods.length) {
      refill(node, nothing(`Nothing of ${part.name} is finished yet.`));
      return;
    }
    const { method, metric } = cellOf(part, state);
    const now = moved(state, { method: method.name, metric: metric.name });
    const query = { part: part.part, picture: now.picture, method: now.method, metric: now.metric, order: now.order };
    node.setAttribute("aria-busy", "true");
    try {
      draw(part, now, await ask(id, "/image", { ...query, ...filtersOf(now) }, signal), metric);
    } catch (error) {
      if (error.name === "AbortError") return;
      refill(node, el("div", { class: "card" }, problem(error.message, () => show(state))));
    } finally {
      node.removeAttribute("aria-busy");
    }
  }

  function draw(part, state, result, metric) {
    const to = (changes) => runAddress(id, moved(state, changes));
    links = {
      ArrowLeft: result.previous && to({ picture: result.previous }),
      ArrowRight: result.next && to({ picture: result.next }),
      Escape: to({ view: "cell", picture: "" }),
    };
    const look = { opacity: Number(state.opacity || OPACITY) };
    const photo = drawnPicture(id, part, result.picture, null, null, `${result.name} as the model sees it`, look);
    const order = [...result.methods].sort((a, b) => better(metric, a.scores[metric.name], b.scores[metric.name]));
    drawings = order.map((item) => {
      const score = digits(item.scores[metric.name], metric.digits);
      const words = item.map ? `Map of ${item.title}, ${metric.name} ${score}` : `${item.title}: no map is there`;
      return drawnPicture(id, part, result.picture, item.map, item.signed, words, look);
    });
    const shots = order.map((item, place) => shot(drawings[place].canvas, {
      href: to({ method: item.name }), key: `method ${item.name}`, on: item.name === state.method,
      score: digits(item.scores[metric.name], metric.digits), name: item.title, spec: item.spec,
      small: item.map ? null : "no map is there",
    }));
    refill(node, el("div", { class: "halves" },
      el("aside", { class: "card side" },
        photo.canvas, facts(result), neighbours(result), actions(part, result, state), lines(result, state)),
      el("div", {},
        el("div", { class: "controls" },
          chooser("ordered by", metricOptions(part), metric.name, (name) => change({ metric: name }), "metric"),
          el("label", { class: "choose" }, el("span", {}, "opacity"), slider(look.opacity))),
        el("div", { class: "shots dense" }, shots),
        el("details", { class: "card worth" },
          el("summary", {}, "All scores of this picture"), scores(part, result)))));
  }

  function slider(value) {
    const oninput = () => {
      filled(input);
      for (const item of drawings) item.draw({ opacity: Number(input.value) });
    };
    const onchange = () => change({ opacity: input.value === OPACITY ? "" : input.value }, { quiet: true });
    const range = { type: "range", min: 0, max: 1, step: 0.05, value, dataset: { key: "opacity" } };
    const input = el("input", { ...range, oninput, onchange });
    filled(input);
    return input;
  }

  function neighbours(result) {
    if (result.index === null || result.index === undefined) return null;
    const link = (words, way) => {
      if (!links[way]) return el("span", { class: "dull" }, words);
      return el("a", { href: links[way], dataset: { key: way } }, words);
    };
    const place = el("span", {}, `${result.index + 1} of ${result.total}`);
    return el("nav", { class: "pager", "aria-label": "Pictures" },
      link("← before", "ArrowLeft"), place, link("after →", "ArrowRight"));
  }

  /** Open the picture where questions can be asked, if the model is there and the picture can be had. */
  function actions(part, result, state) {
    if (!part.pictures) return null; // the head says why
    if (!part.loaded) {
      const words = `To ask more about this picture, start the explorer with the model ${part.model} too.`;
      return el("p", { class: "note" }, words);
    }
    const status = el("p", { class: "note", role: "status" });
    const own = result.methods.find((item) => item.name === state.method);
    const bring = async () => {
      status.textContent = "One moment …";
      try {
        const query = { part: part.part, picture: result.picture };
        const blob = await api(`/api/runs/${encodeURIComponent(id)}/photo`, { query, as: "blob", signal });
        const { picture } = await api("/api/pictures", { query: { name: result.name }, body: blob, signal });
        const asked = { model: part.loaded, picture, view: "maps", ...(own?.passes ? { methods: own.spec } : {}) };
        const pairs = Object.entries(asked).map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
        open(`#/image?${pairs.join("&")}`);
      } catch (error) {
        if (error.name !== "AbortError") status.textContent = error.message;
      }
    };
    const words = "ask about this picture";
    return el("div", {}, button(words, bring, { class: "pill primary", dataset: { key: "ask" } }), status);
  }

  return { node, show, key: (name) => links[name] };
}

function better(metric, one, other) {
  if (one === null || other === null) return (one === null) - (other === null);
  return metric.higher_is_better ? other - one : one - other;
}

function facts(result) {
  const sure = (share) => (share === null ? "" : percent(share));
  const rows = [
    ["picture", result.name],
    ["said", [result.predicted?.label, sure(result.confidence)].filter(Boolean).join(", ")],
    ["is", [result.true?.label, sure(result.true_confidence)].filter(Boolean).join(", ")],
    ["so it was", { true: "right", false: "wrong" }[result.correct] ?? ""],
  ];
  const entries = rows.filter(([, words]) => words);
  return el("dl", { class: "told" }, entries.map(([name, words]) => [el("dt", {}, name), el("dd", {}, words)]));
}

/** The curves that the score was read from: this picture's in red, the mean of all pictures in grey. */
function lines(result, state) {
  if (!result.curves.length) return null;
  return el("div", {},
    el("h3", {}, "What the score was read from"),
    result.curves.map(line),
    el("p", { class: "note" }, `${state.method}: this picture in red, the mean of all pictures in grey.`));
}

function line(curve) {
  const [width, height, room] = [260, 120, 6];
  const values = [...curve.y, ...curve.mean, 0].filter(Number.isFinite);
  const [low, upper] = [Math.min(...values), Math.max(...values)];
  const [left, right] = [Math.min(...curve.x), Math.max(...curve.x)];
  const horizontal = (x) => room + ((x - left) / (right - left || 1)) * (width - 2 * room);
  const up = (y) => height - room - ((y - low) / (upper - low || 1)) * (height - 2 * room);
  const at = (y, i) => `${horizontal(curve.x[i]).toFixed(1)},${up(y).toFixed(1)}`;
  const path = (ys) => `M${ys.map(at).join(" L")}`;
  const words = `${curve.name}: from ${digits(curve.y[0], 2)} to ${digits(curve.y.at(-1), 2)}`;
  return el("figure", { class: "line" },
    svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words },
      svg("line", { class: "axis", x1: room, x2: width - room, y1: up(0), y2: up(0) }),
      svg("path", { class: "usual", d: path(curve.mean) }),
      svg("path", { class: "own", d: path(curve.y) })),
    el("figcaption", { class: "note" }, curve.name));
}

function scores(part, result) {
  const heads = part.metrics.map((item) => el("th", { scope: "col" }, `${arrow(item)}\u00a0`, breakable(item.name)));
  const cell = (item, row) => (metric, column) => {
    const mean = part.cells[row]?.[column]?.mean ?? null;
    const small = mean !== null && el("small", {}, `mean ${digits(mean, metric.digits)}`);
    return el("td", {}, digits(item.scores[metric.name], metric.digits), small);
  };
  const rows = result.methods.map((item, row) => el("tr", { class: part.methods[row]?.quiet ? "yardstick" : null },
    el("th", { scope: "row" }, breakable(item.title)), part.metrics.map(cell(item, row))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Scores of this picture" },
    el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "method"), heads)), el("tbody", {}, rows)));
}
