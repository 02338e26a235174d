// Take it along: what is on the screen as a file, and the lines that make it again.

import { announce, api, el, fill } from "./common.js";
import { exported } from "./export.js";
import { button, copy, icon, problem } from "./parts.js";

const FORMATS = [
  ["png", "PNG", "one picture with captions"],
  ["svg", "SVG", "a panel for papers"],
  ["npy", "NPY", "the raw values"],
  ["html", "HTML", "one page, nothing fetched"],
];

/** The name that the server gave to a file. */
function named(response, format) {
  const said = response.headers.get("Content-Disposition") ?? "";
  return /filename="?([^";]+)"?/.exec(said)?.[1] ?? `vitreous.${format}`;
}

export class Downloads {
  /** `shown()`: the questions on the screen, and a sheet where only the screen has it. */
  constructor(store, shown) {
    this.store = store;
    this.shown = shown;
    this.said = el("div", {});
    this.code = el("div", { class: "codes" });
    this.formats = FORMATS.map(
      ([format, name, words]) => button(
        [el("b", {}, name), el("span", {}, words)],
        () => this.#save(format),
        { class: "format", dataset: { format } },
      ),
    );
    this.dialog = el("dialog", { class: "sheet", "aria-labelledby": "save-title" },
      el(
        "div",
        { class: "head" },
        el("h2", { id: "save-title" }, "Take it along"),
        button(icon("cross"), () => this.dialog.close(), { class: "round", "aria-label": "Close" }),
      ),
      el("div", { class: "formats" }, this.formats), this.said, this.code);
  }

  async open() {
    fill(this.said);
    const { questions, sheet } = this.shown();
    for (const each of this.formats) each.disabled = !sheet && !questions.length;
    fill(this.code, el("p", { class: "note" }, questions.length ? "…" : "There is no map on the screen yet."));
    this.dialog.showModal();
    if (!questions.length) return;
    try {
      const { python, shell } = await api("/api/command", { body: { questions } });
      fill(
        this.code,
        this.#lines("The same in Python", python),
        this.#lines("The same on the command line", shell),
        this.#lines("This view", location.href),
      );
    } catch (error) {
      fill(this.code, problem(error.message));
    }
  }

  #lines(title, text) {
    const done = button([icon("copy"), "copy"], async () => {
      await copy(text);
      done.lastChild.textContent = "copied";
      announce("Copied");
      setTimeout(() => (done.lastChild.textContent = "copy"), 1600);
    }, { class: "link", "aria-label": `Copy: ${title}` });
    return el(
      "section",
      {},
      el("div", { class: "head" }, el("h3", {}, title), done),
      el("pre", { tabindex: "0" }, text),
    );
  }

  async #save(format) {
    fill(this.said, el("p", { class: "note", role: "status" }, "Writing …"));
    try {
      const { blob, name } = await this.#file(format);
      const address = URL.createObjectURL(blob);
      el("a", { href: address, download: name }).click();
      setTimeout(() => URL.revokeObjectURL(address), 10_000);
      fill(this.said, el("p", { class: "note", role: "status" }, `${name} is in your downloads.`));
    } catch (error) {
      fill(this.said, problem(error.message, () => this.#save(format)));
    }
  }

  /** A view that the server cannot draw writes itself; everything else is drawn by the library. */
  async #file(format) {
    const { sheet, questions } = this.shown();
    if (sheet) return exported(format, sheet);
    const { opacity, clip, positive, patches, shared } = this.store.state;
    const look = { opacity, clip, positive, smooth: !patches, shared };
    const response = await api("/api/download", { body: { format, questions, look }, as: "response" });
    return { blob: await response.blob(), name: named(response, format) };
  }
}
