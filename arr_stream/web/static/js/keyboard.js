// Keys that work anywhere on the page, save where text is typed.

import { h } from "./dom.js";

/** Key, what it does, and the name of its action. */
const KEYS = [
  ["/", "look for something", "query"],
  [" ", "pause and go on", "pause"],
  ["v", "next view", "view"],
  ["b", "a second view beside it", "beside"],
  ["r", "mark a region", "region"],
  ["i", "inspect cells", "inspect"],
  ["g", "pointer as gaze", "gaze"],
  ["f", "full screen", "full"],
  ["a", "ask the model", "ask"],
  ["n", "add a stream", "add"],
  ["l", "one stream large", "layout"],
  ["p", "side panel", "panel"],
  ["t", "dark or light", "theme"],
  ["1-9", "choose a stream", "choose"],
  ["Esc", "cancel", "cancel"],
  ["?", "this list", "help"],
];

const TYPED = "input:not([type=checkbox], [type=range]), textarea, select, [contenteditable]";
const PRESSED = "button, a, summary, input, label, [role=tab]";

/** `actions` holds a function for each name above; `choose` gets the number of the stream. */
export function listenToKeys(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return;
    if (document.querySelector("dialog[open]")) return;
    const { target, key } = event;
    if (key === "Escape") {
      if (target.matches?.(TYPED)) target.blur();
      actions.cancel();
      return;
    }
    if (target.matches?.(TYPED) || (key === " " && target.matches?.(PRESSED))) return;
    const number = /^[1-9]$/.test(key) ? Number(key) : 0;
    const [, , name] = KEYS.find(([own]) => own === key) ?? [];
    if (!number && !name) return;
    event.preventDefault();
    if (number) actions.choose(number);
    else actions[name]();
  });
}

export function listKeys(holder) {
  const shown = (key) => (key === " " ? "space" : key);
  holder.replaceChildren(...KEYS.flatMap(([key, about]) => [h("dt", {}, h("kbd", {}, shown(key))), h("dd", {}, about)]));
}
