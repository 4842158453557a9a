// Small helpers for making and changing elements; text always goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

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
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

export function setIcon(holder, name) {
  holder.querySelector("use").setAttribute("href", `#i-${name}`);
}

/** Change a text only when it differs: an unchanged one must not be read out again, nor laid out. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function fromTemplate(id) {
  return document.getElementById(id).content.firstElementChild.cloneNode(true);
}

/** A text with what stands between backticks as code. */
export function withCode(text) {
  return text.split("`").map((part, place) => (place % 2 ? h("code", {}, part) : part));
}

/** Read out to those who use a screen reader. */
export function say(text) {
  setText(document.getElementById("said"), text);
}

/** Call `action` once, `ms` after the last call. */
export function settled(action, ms) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), ms);
  };
}

/** A path of this server; it also works below a prefix. */
export function here(path) {
  return new URL(path, document.baseURI);
}

/** The name of a stream; of a path that nobody has named otherwise, its last part. */
export function shortName({ name, source }) {
  const path = /^(loop:)?(?:[a-z]:)?[\\/].*[\\/]([^\\/]+)$/i.exec(name);
  return name === source && path ? `${path[1] ?? ""}${path[2]}` : name;
}

export function clockTime(unix) {
  return new Date(unix * 1000).toLocaleTimeString([], { hour12: false });
}

/** Seconds as people write them: `12 s`, `3 min 20 s`, `2 h 5 min`. */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

export function bytes(count) {
  if (count < 1000) return `${count} B`;
  return count < 1e6 ? `${Math.round(count / 1e3)} kB` : `${(count / 1e6).toFixed(1)} MB`;
}
