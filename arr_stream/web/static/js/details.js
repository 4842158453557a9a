// Plain facts of the chosen stream, and addresses for other programs.

import { api, links } from "./api.js";
import { duration, h, setText } from "./dom.js";
import { on, store } from "./store.js";
import { attempt } from "./toasts.js";

const FACTS = [
  ["Source", (s) => s.source],
  ["Kind", (s) => s.kind],
  ["State", (s) => (s.message ? `${s.state}: ${s.message}` : s.state)],
  ["Size", (s) => (s.size_wh ? `${s.size_wh[0]}×${s.size_wh[1]}` : "not known yet")],
  ["Source rate", (s) => (s.source_fps ? `${s.source_fps.toFixed(1)} a second` : "not known")],
  ["Processed", (s) => `${s.fps?.toFixed(1) ?? "0"} a second, ${s.frames} in all`],
  ["Passed over", (s) => String(s.dropped)],
  ["Reconnected", (s) => times(s.reconnects)],
  ["Stalled", (s) => times(s.stalls)],
  ["Latency", (s) => (Number.isFinite(s.latency_ms) ? `${s.latency_ms.toFixed(1)} ms, median` : "–")],
  ["Age when shown", (s) => (Number.isFinite(s.age_ms) ? `${s.age_ms.toFixed(0)} ms, median` : "–")],
  ["Quality", (s) => (s.quality ? `lowered ${s.quality} under load` : "full")],
  ["Running for", (s) => duration(Date.now() / 1000 - s.started_unix)],
];

const times = (count) => (count === 1 ? "once" : count ? `${count} times` : "never");

export class Details {
  constructor(part) {
    this.open = false;
    this.name = h("input", { type: "text", maxlength: "80", "aria-label": "Name of the stream", "data-testid": "stream-name" });
    this.name.addEventListener("change", () => store.chosen && attempt(() => api.change(store.chosen, { name: this.name.value.trim() })));
    this.values = FACTS.map(() => h("dd"));
    this.links = h("p", { class: "row links" });
    part.append(
      h("label", { class: "field" }, h("span", {}, "Name"), this.name),
      h("dl", { class: "facts-list" }, FACTS.flatMap(([title], place) => [h("dt", {}, title), this.values[place]])),
      this.links,
      h("p", { class: "hint" }, "Programs: ", h("a", { href: "docs", target: "_blank", rel: "noopener" }, "the interface"), ", ", h("a", { href: "metrics", target: "_blank", rel: "noopener" }, "metrics")),
    );
    on("status", (status) => status.id === store.chosen && this._write(status));
    on("chosen", () => this._write(store.streams.get(store.chosen)));
  }

  shown(open) {
    this.open = open;
    this._write(store.streams.get(store.chosen));
  }

  _write(status) {
    if (!this.open) return;
    FACTS.forEach(([, told], place) => setText(this.values[place], status ? told(status) : "–"));
    if (!status) return;
    if (document.activeElement !== this.name) this.name.value = status.name;
    if (this.links.dataset.stream === status.id) return;
    this.links.dataset.stream = status.id;
    this.links.replaceChildren(
      h("a", { class: "button small", href: links.snapshot(status.id, "patches"), target: "_blank", rel: "noopener" }, "Snapshot"),
      h("a", { class: "button small", href: links.records(status.id), download: `${status.id}.jsonl` }, "Records"),
      h("a", { class: "button small", href: links.mjpeg(status.id, "patches"), target: "_blank", rel: "noopener" }, "MJPEG"),
    );
  }
}
