// Settings of the selected stream, built from the server's list of settings that may change while it runs.

import { api, lineOf } from "./api.js";
import { h, icon, say, settled, setText, toast, withCode } from "./dom.js";
import { on, onChosenStatus, store } from "./store.js";

const SETTLE_MS = 250;

/** Titles of sections and settings; others have the last part of their key. */
const TITLES = {
  selection: "Selection",
  relevance: "Relevance",
  live: "Live",
  "selection.budget": "Tokens per frame",
  "selection.per_second": "Tokens per second",
  "keyframes.text": "Find written text",
  "keyframes.interval": "Frames between keyframes",
  "live.adapt": "Lower quality to keep up",
};

function title(key) {
  const words = key.slice(key.indexOf(".") + 1).replaceAll("_", " ");
  return TITLES[key] ?? words[0].toUpperCase() + words.slice(1);
}

/** The control for one setting; `value` reads it, `put(value)` writes it, and `changed()` is called on the user's input. */
function control(key, setting, changed) {
  const common = { id: `setting-${key}`, "data-testid": `setting-${key}`, "aria-describedby": `about-${key}`, onchange: changed };
  const alone = (element, value, put) => ({ parts: [element], value, put, element });
  if (setting.kind === "switch") {
    const box = h("input", { type: "checkbox", role: "switch", ...common });
    return alone(box, () => box.checked, (value) => (box.checked = value));
  }
  if (setting.kind === "choice") {
    const select = h("select", common, setting.choices.map((choice) => h("option", { value: choice }, String(choice))));
    return alone(select, () => setting.choices.find((choice) => String(choice) === select.value), (value) => (select.value = String(value)));
  }
  if (setting.kind === "text") {
    const input = h("input", { type: "text", ...common, spellcheck: "false", autocomplete: "off" });
    return alone(input, () => input.value.trim(), (value) => (input.value = String(value)));
  }
  return numeric(key, setting, common);
}

function numeric(key, setting, common) {
  const whole = setting.kind === "whole";
  const bounded = Number.isFinite(setting.low) && Number.isFinite(setting.high);
  const range = bounded && (!whole || setting.high - setting.low <= 1000);
  const limits = { min: setting.low ?? null, max: setting.high ?? null };
  const box = h("input", { type: "number", ...common, ...limits, step: whole ? "1" : "any" });
  if (!range) return { parts: [box], value: () => box.valueAsNumber, put: (value) => (box.value = value), element: box };
  const step = whole ? 1 : (setting.high - setting.low) / 100;
  const slider = h("input", { type: "range", ...limits, step, "aria-label": key, tabindex: "-1" });
  const later = settled(common.onchange, SETTLE_MS);
  slider.addEventListener("input", () => {
    box.value = String(Number(slider.valueAsNumber.toFixed(whole ? 0 : 3)));
    later();
  });
  box.addEventListener("input", () => (slider.value = box.value));
  const put = (value) => (slider.value = box.value = String(value));
  return { parts: [slider, box], value: () => box.valueAsNumber, put, element: box };
}

export class SettingsForm {
  constructor(part) {
    this.part = part;
    this.rows = new Map();
    on("info", () => this._build());
    onChosenStatus((status) => this._take(status));
    on("chosen", () => this._chosen());
  }

  _build() {
    const { settings, presets } = store.info;
    this.preset = h(
      "select",
      { id: "preset", "data-testid": "preset-select" },
      h("option", { value: "" }, "defaults"),
      presets.map(({ name, description }) => h("option", { value: name }, `${name} · ${description}`)),
    );
    this.preset.addEventListener("change", () => this._send({ preset: this.preset.value || null }));
    const reset = h("button", { type: "button", class: "small", "data-testid": "settings-reset", onclick: () => this._resetAll() }, "Reset all");
    const common = [];
    const sections = new Map();
    for (const [key, setting] of Object.entries(settings)) {
      const section = key.split(".")[0];
      if (setting.advanced && !sections.has(section)) sections.set(section, []);
      (setting.advanced ? sections.get(section) : common).push(this._row(key, setting));
    }
    const groups = [...sections].map(([section, rows]) => h("fieldset", {}, h("legend", {}, title(section)), rows));
    this.part.replaceChildren(
      h("div", { class: "row preset" }, h("label", { for: "preset" }, "Preset"), this.preset, reset),
      h("fieldset", { "aria-label": "Settings" }, common),
      h("details", { class: "advanced" }, h("summary", {}, "Advanced"), groups),
    );
    this._chosen();
  }

  _row(key, setting) {
    const made = control(key, setting, () => this._changed(key));
    const back = h("button", { type: "button", class: "quiet tiny", "aria-label": `Reset ${title(key)}`, title: `Back to ${setting.start}`, onclick: () => this._send({ settings: { [key]: setting.start } }, key) }, icon("history"));
    const problem = h("p", { class: "problem", role: "alert", hidden: true });
    const row = h(
      "div",
      { class: "setting", "data-kind": setting.kind },
      h("label", { for: `setting-${key}` }, title(key)),
      h("div", { class: "control" }, made.parts, back),
      h("p", { class: "about", id: `about-${key}` }, withCode(setting.description)),
      problem,
    );
    this.rows.set(key, { ...made, row, back, problem, setting });
    return row;
  }

  _chosen() {
    const { status } = store;
    this.part.inert = !status;
    if (status) this._take(status);
  }

  /** Show the stream's current values; a control in use is not changed. */
  _take(status) {
    if (!this.preset) return;
    if (document.activeElement !== this.preset) this.preset.value = status.preset ?? "";
    for (const [key, { put, row, back, setting, parts }] of this.rows) {
      const value = key in status.settings ? status.settings[key] : setting.default;
      const changed = value !== setting.start;
      row.classList.toggle("changed", changed);
      back.disabled = !changed;
      const typed = setting.kind !== "switch" && setting.kind !== "choice";
      if (!typed || !parts.includes(document.activeElement)) put(value);
    }
  }

  _changed(key) {
    const { value, setting } = this.rows.get(key);
    const wanted = value();
    if (typeof wanted === "number" && !Number.isFinite(wanted)) return this._complain(key, `${title(key)} needs a number`);
    if (setting.kind === "whole" && !Number.isInteger(wanted)) return this._complain(key, `${title(key)} needs a whole number`);
    return this._send({ settings: { [key]: wanted } }, key);
  }

  async _send(body, key = null) {
    const id = store.chosen;
    if (!id) return;
    try {
      const status = await api.change(id, body);
      if (key) this._complain(key, null);
      if (status && id === store.chosen) this._take(status);
      say(key ? `${title(key)} changed` : "Settings changed");
    } catch (error) {
      if (key) this._complain(key, lineOf(error));
      else if (error.status !== 401) toast(lineOf(error), "error");
    }
  }

  _complain(key, text) {
    const { problem, element } = this.rows.get(key);
    problem.hidden = !text;
    setText(problem, text ?? "");
    element.setAttribute("aria-invalid", String(Boolean(text)));
  }

  /** Reset all settings to the stream's preset, or to the server's own settings if it has none. */
  _resetAll() {
    if (!store.status) return;
    for (const key of this.rows.keys()) this._complain(key, null);
    this._send({ preset: store.status.preset });
  }
}
