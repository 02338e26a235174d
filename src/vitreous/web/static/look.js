// How maps are drawn: opacity, clip, sign, patches, one scale for all.

import { el } from "./common.js";
import { choice, slider } from "./parts.js";

export class LookBar {
  constructor(store) {
    this.store = store;
    const now = (name) => (value) => store.set({ [name]: value }, { replace: true });
    this.opacity = slider(
      "Opacity",
      {
        min: 0,
        max: 1,
        step: 0.05,
        title: "[ and ]",
        words: (value) => `${Math.round(100 * value)} %`,
        oninput: now("opacity"),
      },
    );
    this.clip = slider(
      "Clip",
      {
        min: 80,
        max: 100,
        step: 1,
        title: "The percentile of |value| that has the strongest colour",
        words: (value) => (value === 100 ? "maximum" : `${value}th`),
        oninput: now("clip"),
      },
    );
    this.sign = choice(
      "Sign",
      [[false, "signed"], [true, "positive", "Only what speaks for the class (P)"]],
      now("positive"),
    );
    this.smooth = choice("Grain", [[false, "smooth"], [true, "patches", "As the model sees them (T)"]], now("patches"));
    this.scale = choice(
      "Scale",
      [
        [false, "own scale", "The strongest patch of each map has the strongest colour"],
        [true, "one scale", "The same value has the same colour everywhere (S)"],
      ],
      now("shared"),
    );
    this.node = el(
      "div",
      { class: "look", role: "toolbar", "aria-label": "How maps are drawn" },
      this.scale.node,
      this.sign.node,
      this.smooth.node,
      this.opacity.node,
      this.clip.node,
    );
  }

  update() {
    const { opacity, clip, positive, patches, shared, view } = this.store.state;
    this.opacity.update(opacity);
    this.clip.update(clip);
    this.sign.update(positive);
    this.smooth.update(patches);
    this.scale.update(shared);
    this.scale.node.hidden = view === "why";
    this.node.hidden = view === "owners";
  }
}
