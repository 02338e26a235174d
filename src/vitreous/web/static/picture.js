// Where pictures come from: dropped, pasted, picked, or a scene of the bundled world.

import { announce, api, el, fill, pictureAddress } from "./common.js";
import { button, icon, problem } from "./parts.js";

function megabytes(bytes) {
  return (bytes / 2 ** 20).toFixed(1).replace(/\.0$/, "");
}

/** Send a photograph to the server and show it. */
async function upload(store, file, told) {
  const most = store.start.limits?.bytes ?? Infinity;
  const name = file.name || "pasted picture";
  if (file.size > most) {
    told(problem(`${name} has ${megabytes(file.size)} MB, more than ${megabytes(most)} MB.`));
    return;
  }
  announce(`Reading ${name}`);
  told(el("p", { class: "note" }, `Reading ${name} …`));
  try {
    const made = await api("/api/pictures", { query: { name }, body: file });
    told(null);
    store.receive(made);
  } catch (error) {
    told(problem(error.message));
  }
}

/** The scenes as buttons with their pictures. */
function gallery(store, onpick) {
  return el(
    "div",
    { class: "scenes" },
    store.start.scenes.map(({ picture, title }) =>
      button(
        [
          el(
            "img",
            { src: pictureAddress(picture, store.model.name), alt: "", loading: "lazy", width: 128, height: 128 },
          ),
          el("span", {}, title),
        ],
        () => onpick(picture),
        { class: "scene", dataset: { picture } },
      ),
    ),
  );
}

/** The part at the left that shows the picture and takes another; also all that is dropped or pasted on the page. */
export class PicturePanel {
  #said = el("div", {});
  #shown = "";

  constructor(store) {
    this.store = store;
    this.file = el(
      "input",
      {
        type: "file",
        accept: "image/*",
        class: "unseen",
        tabindex: "-1",
        "aria-label": "Photograph to upload",
        onchange: () => this.#take([...this.file.files]),
      },
    );
    this.thumb = el("img", { class: "thumb", alt: "", width: 224, height: 224 });
    this.title = el("p", { class: "note" });
    this.drop = button(
      [this.thumb, el("span", { class: "hint" }, "drop another")],
      () => this.pick(),
      { class: "drop", "aria-label": "The picture. Choose another photograph" },
    );
    this.dialog = el("dialog", { class: "sheet wide", "aria-labelledby": "scenes-title" });
    this.node = el(
      "section",
      { class: "picture", "aria-label": "Picture" },
      this.drop,
      el("div", { class: "beside" }, this.title, el("div", { class: "row" },
        button([icon("photo"), "Photograph"], () => this.pick(), { class: "pill small" }),
        button([icon("scenes"), "Scenes"], () => this.browse(), { class: "pill small" }))),
      this.#said,
      this.file,
      this.dialog,
    );
    this.empty = this.#invitation();
    this.#listen();
  }

  pick() {
    this.file.click();
  }

  browse() {
    const scenes = gallery(this.store, (picture) => {
      this.dialog.close();
      this.store.show(picture);
    });
    fill(this.dialog,
      el(
        "div",
        { class: "head" },
        el("h2", { id: "scenes-title" }, "Scenes of the bundled world"),
        button(icon("cross"), () => this.dialog.close(), { class: "round", "aria-label": "Close" }),
      ),
      el(
        "p",
        { class: "note" },
        "Creatures of five parts. One part tells siblings apart, and everything about them is known.",
      ),
      scenes);
    this.dialog.showModal();
    scenes.querySelector(`[data-picture="${CSS.escape(this.store.state.picture ?? "")}"]`)?.focus();
  }

  /** The next scene of the list, or the one before. */
  step(by) {
    const { scenes } = this.store.start;
    const now = scenes.findIndex((each) => each.picture === this.store.state.picture);
    this.store.show(scenes[(Math.max(now, by < 0 ? 0 : -1) + by + scenes.length) % scenes.length].picture);
  }

  #take(files) {
    const file = files.find((each) => each.type.startsWith("image/")) ?? files[0];
    this.file.value = "";
    if (file) upload(this.store, file, (node) => this.#tell(node));
  }

  /** What is said about a photograph that was given: where one looks, with a picture on the screen or without. */
  #tell(node) {
    fill(this.#said);
    fill(this.said);
    if (node) (this.store.state.picture ? this.#said : this.said).append(node);
  }

  #listen() {
    let depth = 0;
    const over = (now) => document.body.classList.toggle("dropping", now);
    const withFiles = (event) => event.dataTransfer?.types.includes("Files");
    document.addEventListener("dragenter", (event) => withFiles(event) && (event.preventDefault(), over(++depth > 0)));
    document.addEventListener("dragleave", (event) => withFiles(event) && over(--depth > 0));
    document.addEventListener("dragover", (event) => withFiles(event) && event.preventDefault());
    document.addEventListener("drop", (event) => {
      if (!withFiles(event)) return;
      event.preventDefault();
      over((depth = 0) > 0);
      this.#take([...event.dataTransfer.files]);
    });
    document.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (!files.length) return;
      event.preventDefault();
      this.#take(files);
    });
  }

  #invitation() {
    this.said = el("div", {});
    const scenes = el("div", {});
    this.drawScenes = () => scenes.childElementCount || fill(
      scenes,
      gallery(this.store, (picture) => this.store.show(picture)),
    );
    return el(
      "div",
      { class: "empty" },
      el("h1", {}, "What made it decide?"),
      el(
        "p",
        { class: "lead" },
        "Give the model a photograph. It says what it sees, shows where it saw it, and lets you put that to the test.",
      ),
      button(
        [
          icon("photo"),
          el("b", {}, "Drop a photograph, paste one, or choose a file"),
          el("span", {}, "It stays on this machine, in memory."),
        ],
        () => this.pick(),
        { class: "target" },
      ),
      this.said,
      el("h2", {}, "Or begin with a scene"),
      el(
        "p",
        { class: "note" },
        "Creatures of the bundled world. Which part tells their class is known, so you can see whether a map finds it.",
      ),
      scenes,
    );
  }

  update() {
    const { store } = this;
    const { picture } = store.state;
    this.drop.classList.toggle("blank", !picture);
    const shown = picture ? pictureAddress(picture, store.model.name) : "";
    if (shown !== this.#shown) {
      this.#shown = shown;
      if (shown) this.thumb.src = shown;
      else this.thumb.removeAttribute("src");
      fill(this.#said);
      if (picture) fill(this.said);
    }
    this.title.textContent = picture ? store.title(picture) : "no picture yet";
    if (!picture) this.drawScenes();
  }
}
