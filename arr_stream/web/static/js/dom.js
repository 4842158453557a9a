// Making, changing and telling; text always goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const MOST_TOASTS = 4;
const STAY_MS = { error: 12000, alert: 20000, note: 5000 };

export const byId = (id) => document.getElementById(id);
export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/** Arrow keys, as steps right and down. */
export const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** An element with attributes, listeners (`onclick`) and children (elements, texts, null for none). */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** One of the icons of the page's sprite. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  svg.append(document.createElementNS(SVG, "use"));
  setIcon(svg, name);
  return svg;
}

export function setIcon(holder, name) {
  holder.querySelector("use").setAttribute("href", `#i-${name}`);
}

/** Change a text only when it differs: an unchanged one must not be read out again, nor laid out. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const fromTemplate = (id) => byId(id).content.firstElementChild.cloneNode(true);

/** Give a canvas as many pixels as it covers of the screen, at most four to one of the page; how many to a side. */
export function sharpen(canvas) {
  const density = Math.min(2, window.devicePixelRatio || 1);
  const [width, height] = [Math.round(canvas.clientWidth * density), Math.round(canvas.clientHeight * density)];
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  return density;
}

/** Lines for a small box, the first one strong. */
export const tipLines = (lines) => lines.map((line, place) => h(place ? "span" : "strong", {}, line));

/** Return a text with the parts between backticks as code. */
export const withCode = (text) => text.split("`").map((part, place) => (place % 2 ? h("code", {}, part) : part));

/** Read out to those who use a screen reader. */
export const say = (text) => setText(byId("said"), text);

/** Show one line for a while; an error is read out at once. */
export function toast(text, kind = "note") {
  const holder = byId("toasts");
  for (const old of holder.children) if (old.dataset.text === text) old.remove();
  const close = h("button", { type: "button", class: "quiet small", "aria-label": "Dismiss", onclick: () => box.remove() }, icon("cross"));
  const box = h("div", { class: "toast", "data-kind": kind, role: kind === "error" ? "alert" : "status", "data-text": text }, h("p", {}, text), close);
  holder.append(box);
  while (holder.children.length > MOST_TOASTS) holder.firstElementChild.remove();
  setTimeout(() => box.remove(), STAY_MS[kind]);
}

/** Call `action` once, `ms` after the last call. */
export function settled(action, ms) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, ms);
  };
}

/** A path of this server; it also works below a prefix. */
export const here = (path) => new URL(path, document.baseURI);

/** The name of a stream; of a path that nobody has named otherwise, its last part. */
export function shortName({ name, source }) {
  const path = /^(loop:)?(?:[a-z]:)?[\\/].*[\\/]([^\\/]+)$/i.exec(name);
  return name === source && path ? `${path[1] ?? ""}${path[2]}` : name;
}

export const clockTime = (unix) => new Date(unix * 1000).toLocaleTimeString([], { hour12: false });

/** Seconds as people write them: `12 s`, `3 min 20 s`, `2 h 5 min`. */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}
