// What the browser keeps from visit to visit. Storage may be closed or full: then it lasts as long as the page.

const PREFIX = "arr-stream.";
const held = new Map();

export function recall(key, otherwise) {
  if (held.has(key)) return held.get(key);
  try {
    const text = localStorage.getItem(PREFIX + key);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

export function remember(key, value) {
  held.set(key, value);
  try {
    localStorage.setItem(PREFIX + key, JSON.stringify(value));
  } catch {
    // kept in `held`
  }
}

/** A bounded list of earlier entries, newest last; one that comes again moves to the end. */
export class History {
  constructor(key, most = 40) {
    this.key = key;
    this.most = most;
    const kept = recall(key, []);
    this.entries = Array.isArray(kept) ? kept.filter((entry) => typeof entry === "string") : [];
    this.place = null;
    this.draft = "";
  }

  add(text) {
    this.place = null;
    this.entries = [...this.entries.filter((entry) => entry !== text), text].slice(-this.most);
    remember(this.key, this.entries);
  }

  /** One step back (-1) or forth (+1) from what stands in the box; null where there is nothing. */
  step(direction, current) {
    if (this.place === null) {
      if (direction > 0 || !this.entries.length) return null;
      this.draft = current;
      this.place = this.entries.length;
    }
    this.place = Math.max(0, this.place + direction);
    if (this.place >= this.entries.length) {
      this.place = null;
      return this.draft;
    }
    return this.entries[this.place];
  }

  /** The up and down keys of an input walk through the entries. */
  attach(input) {
    input.addEventListener("keydown", (event) => {
      const direction = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (!direction || event.isComposing) return;
      const text = this.step(direction, input.value);
      if (text === null) return;
      event.preventDefault();
      input.value = text;
      input.setSelectionRange(text.length, text.length);
    });
    input.addEventListener("input", () => (this.place = null));
  }
}
