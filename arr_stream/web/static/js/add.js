// The dialog for adding a stream.

import { api, lineOf } from "./api.js";
import { sendFromBrowser, whyNot } from "./browser_camera.js";
import { byId, h, icon, say, setText, shortName } from "./dom.js";
import { choose, on, store } from "./store.js";

export class AddDialog {
  constructor() {
    this.dialog = byId("add-dialog");
    this.problem = byId("add-problem");
    this.submit = this.dialog.querySelector("[data-testid=add-submit]");
    byId("add-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this._add();
    });
    this.wanted = false;
    on("info", () => this.wanted && this.open());
  }

  open() {
    // Wait for the server's list of allowed sources.
    this.wanted = !store.info;
    if (this.wanted) return;
    this._complain(null);
    this._fill();
    if (!this.dialog.open) this.dialog.showModal();
    byId("add-source").focus();
  }

  /** Start this browser's camera, as the empty page offers. */
  startCamera() {
    this.open();
    this._browser("camera");
  }

  _fill() {
    const { sources, presets } = store.info;
    const preset = byId("add-preset");
    const chosen = preset.value;
    preset.replaceChildren(h("option", { value: "" }, "defaults"), ...presets.map(({ name, description }) => h("option", { value: name, title: description }, name)));
    preset.value = chosen;
    setText(byId("add-hint"), this._hint(sources));
    const named = sources.named.map((source) => this._offer("picture", shortName({ name: source, source }), source));
    byId("offers").replaceChildren(...this._browserOffers(), ...named);
    if (sources.cameras) this._cameras();
  }

  _hint({ patterns, named, cameras, folders }) {
    const opened = [...patterns];
    if (folders) opened.push("files in its allowed folders");
    if (named.length || cameras) opened.push("the sources above");
    if (!opened.length) return "This server allows no addresses; start it with --allow to add some.";
    const last = opened.pop();
    return `This server opens ${opened.length ? `${opened.join(", ")} and ${last}` : last}.`;
  }

  _browserOffers() {
    return ["camera", "screen"].map((kind) => {
      const refused = whyNot(kind);
      const options = { "data-action": `add-browser-${kind}`, disabled: Boolean(refused), title: refused, onclick: () => this._browser(kind) };
      return h("button", { type: "button", class: "offer", ...options }, icon(kind), h("span", {}, `This browser's ${kind}`));
    });
  }

  _offer(iconName, label, source) {
    const pick = () => {
      byId("add-source").value = source;
      for (const other of byId("offers").children) other.setAttribute("aria-pressed", String(other === button));
      this.submit.focus();
    };
    const button = h("button", { type: "button", class: "offer", "aria-pressed": "false", onclick: pick, "data-source": source, title: source }, icon(iconName), h("span", {}, label));
    return button;
  }

  async _cameras() {
    const offers = byId("offers");
    const cameras = await api.cameras().catch((error) => this._complain(lineOf(error)));
    for (const { source, name } of cameras ?? []) {
      if ([...offers.children].some((offer) => offer.dataset.source === source)) continue;
      offers.append(this._offer("camera", name ? `${name} (${source})` : source, source));
    }
  }

  /** Return the options of any kind of source, without empty ones. */
  _options() {
    const [name, query, preset] = ["add-name", "add-query", "add-preset"].map((id) => byId(id).value.trim());
    return { ...(name && { name }), ...(query && { query: [query] }), ...(preset && { preset }) };
  }

  _add() {
    const source = byId("add-source").value.trim();
    if (!source) {
      this._complain("Choose a source or give its address");
      byId("add-source").focus();
      return;
    }
    this._while(() => api.add({ source, ...this._options() }));
  }

  _browser(kind) {
    const name = kind === "screen" ? "Screen" : "This camera";
    this._while(() => sendFromBrowser(kind, { name, ...this._options() }));
  }

  async _while(action) {
    this._complain(null);
    this.dialog.classList.add("working");
    this.submit.disabled = true;
    try {
      const status = await action();
      this.dialog.close();
      for (const id of ["add-source", "add-name", "add-query"]) byId(id).value = "";
      say(`${status.name} added`);
      this._chooseWhenThere(status.id);
    } catch (error) {
      this._complain(lineOf(error));
    } finally {
      this.dialog.classList.remove("working");
      this.submit.disabled = false;
    }
  }

  /** The list that names the new stream may still be under way. */
  _chooseWhenThere(id, tries = 20) {
    if (store.streams.has(id)) choose(id);
    else if (tries > 0) setTimeout(() => this._chooseWhenThere(id, tries - 1), 100);
  }

  _complain(text) {
    this.problem.hidden = !text;
    setText(this.problem, text ?? "");
  }
}
