// Messages that come and go.

import { ApiError } from "./api.js";
import { h, icon } from "./dom.js";

const MOST = 4;
const STAY_MS = { error: 12000, note: 5000 };

/** Show one line for a while; an error is read out at once. */
export function toast(text, kind = "note") {
  const holder = document.getElementById("toasts");
  for (const old of holder.children) if (old.dataset.text === text) old.remove();
  const close = h("button", { type: "button", class: "quiet small", "aria-label": "Dismiss", onclick: () => box.remove() }, icon("cross"));
  const box = h("div", { class: "toast", "data-kind": kind, role: kind === "error" ? "alert" : "status", "data-text": text }, h("p", {}, text), close);
  holder.append(box);
  while (holder.children.length > MOST) holder.firstElementChild.remove();
  setTimeout(() => box.remove(), STAY_MS[kind] ?? STAY_MS.note);
}

/** Wait for an action; its failure is shown and gives undefined. */
export async function attempt(action) {
  try {
    return await action();
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return undefined; // the token dialog is up
    toast(error instanceof ApiError ? error.line : String(error.message ?? error), "error");
    return undefined;
  }
}
