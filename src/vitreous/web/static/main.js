// Where the page begins: what the server has, which page the address asks for, light or dark.

import { readHash, writeState } from "./address.js";
import { api, el, fill } from "./common.js";
import { ImagePage } from "./image.js";
import { Keys } from "./keys.js";
import { setColours } from "./maps.js";
import { button, icon, problem } from "./parts.js";
import { Store } from "./store.js";

const app = document.getElementById("app");
let unmount = null;

/** Light, dark, or as the system says. */
function themeButton() {
  const dark = () => (document.documentElement.dataset.theme ?? (matchMedia(
    "(prefers-color-scheme: dark)",
  ).matches ? "dark" : "light")) === "dark";
  const set = (theme) => {
    document.documentElement.dataset.theme = theme;
    sessionStorage.setItem("theme", theme);
    draw();
  };
  const node = button("", () => set(dark() ? "light" : "dark"), { class: "round" });
  const draw = () => {
    fill(node, icon(dark() ? "light" : "dark"));
    node.setAttribute("aria-label", dark() ? "Light" : "Dark");
  };
  const kept = sessionStorage.getItem("theme");
  if (kept) document.documentElement.dataset.theme = kept;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
  return node;
}

function topBar(start, keys) {
  const runs = start.runs.map(
    ({ id, title }) => el("a", { href: `#/run/${encodeURIComponent(id)}`, dataset: { run: id } }, title),
  );
  const pages = runs.length ? [el("a", { href: "#/image", dataset: { run: "" } }, "Image"), ...runs] : [];
  fill(document.getElementById("bar"),
    el(
      "a",
      { class: "brand", href: "#/image", "aria-label": "Vitreous, begin again" },
      el("img", { src: "/static/icon.svg", alt: "", width: 22, height: 22 }),
      "Vitreous",
    ),
    el("nav", { "aria-label": "Pages" }, pages),
    el("span", { class: "version" }, start.version),
    themeButton(),
    button("?", () => keys.show(), { class: "round", "aria-label": "Keys", "aria-haspopup": "dialog" }),
    keys.dialog);
}

async function begin() {
  const keys = new Keys();
  let start;
  try {
    start = await api("/api/start");
  } catch (error) {
    fill(app, problem(error.message, () => location.reload()));
    return;
  }
  setColours(start.colours);
  topBar(start, keys);
  const store = new Store(start);
  const page = new ImagePage(store, keys);
  const navigate = (hash, { replace = false } = {}) => {
    history[replace ? "replaceState" : "pushState"](null, "", hash);
    route();
  };

  async function route() {
    const asked = readHash(location.hash);
    keys.page = asked.page;
    const here = asked.page === "run" ? asked.id : "";
    for (const link of document.querySelectorAll(".topbar nav a"))
      link.toggleAttribute("aria-current", link.dataset.run === here);
    if (asked.page === "image") {
      unmount?.();
      unmount = null;
      if (app.firstChild !== page.node) fill(app, page.node);
      store.open(asked.parameters);
      return;
    }
    store.answers.want([]);
    try {
      const { mount } = await import("./runs.js");
      const again = readHash(location.hash);
      if (again.page !== "run") return;
      unmount?.();
      const place = el("div", { class: "runpage", id: "stage" });
      fill(app, place);
      unmount = mount(place, again.id, again.parameters, navigate);
    } catch (error) {
      fill(app, problem(`This run cannot be shown: ${error.message}`));
    }
  }

  document.addEventListener("click", ({ target, clientX, clientY }) => {
    if (!(target instanceof HTMLDialogElement)) return;
    const { left, right, top, bottom } = target.getBoundingClientRect();
    if (clientX < left || clientX > right || clientY < top || clientY > bottom) target.close(); // beside it
  });
  store.addEventListener("change", () => {
    // a photograph that is dropped on the page of a run
    if (readHash(location.hash).page === "image" && app.firstChild !== page.node) route();
  });
  addEventListener("popstate", route); // also where a link leads to another hash
  document.querySelector(".skip").addEventListener("click", () => document.getElementById("stage")?.focus());
  if (!location.hash) history.replaceState(null, "", writeState(store.state));
  route();
}

begin();
