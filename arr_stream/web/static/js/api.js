// Requests to the server; every failure becomes an ApiError with one line to show.

import { here, toast } from "./dom.js";

export class ApiError extends Error {
  constructor(message, { status = 0, remedy = null } = {}) {
    super(message);
    this.status = status;
    this.remedy = remedy;
  }

  /** The line and its remedy, for showing. */
  get line() {
    return this.remedy ? `${this.message}: ${this.remedy}` : this.message;
  }
}

/** Dispatched on window when the server asks for its token. */
export const NEEDS_TOKEN = "arr-needs-token";

async function request(method, path, { body, raw, timeout_ms = 20000 } = {}) {
  let response;
  try {
    response = await fetch(here(path), {
      method,
      credentials: "same-origin",
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: raw ?? (body === undefined ? undefined : JSON.stringify(body)),
      signal: AbortSignal.timeout(timeout_ms),
    });
  } catch (error) {
    const late = error.name === "TimeoutError";
    throw new ApiError(late ? "The server did not answer in time" : "The server cannot be reached");
  }
  if (response.status === 401) window.dispatchEvent(new Event(NEEDS_TOKEN));
  if (!response.ok) throw await told(response);
  if (response.status === 204) return null;
  const text = await response.text();
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    throw new ApiError(`The server's answer to ${path} is not JSON`, { status: response.status });
  }
}

async function told(response) {
  const { status } = response;
  // An answer from something between is no JSON: its status must do.
  const { error, remedy } = (await response.json().catch(() => null)) ?? {};
  const message = typeof error === "string" ? error : `The server answered ${status}`;
  return new ApiError(message, { status, remedy: typeof remedy === "string" ? remedy : null });
}

/** One line for any failure. */
export const lineOf = (error) => (error instanceof ApiError ? error.line : String(error.message ?? error));

/** Wait for an action; its failure is shown and gives undefined. */
export async function attempt(action) {
  try {
    return await action();
  } catch (error) {
    // Where the token is missing, its dialog is up.
    if (!(error instanceof ApiError && error.status === 401)) toast(lineOf(error), "error");
    return undefined;
  }
}

const stream = (id, rest = "") => `api/streams/${encodeURIComponent(id)}${rest}`;

export const api = {
  info: () => request("GET", "api/info"),
  cameras: () => request("GET", "api/cameras"),
  add: (body) => request("POST", "api/streams", { body, timeout_ms: 60000 }),
  remove: (id) => request("DELETE", stream(id)),
  change: (id, body) => request("PATCH", stream(id), { body, timeout_ms: 120000 }),
  retry: (id) => request("POST", stream(id, "/retry")),
  query: (id, body) => request("PUT", stream(id, "/query"), { body }),
  example: (id, file) => request("PUT", stream(id, "/example"), { raw: file }),
  forgetExample: (id) => request("DELETE", stream(id, "/example")),
  rules: (id, rules) => request("PUT", stream(id, "/rules"), { body: { rules } }),
  ask: (id, body) => request("POST", stream(id, "/questions"), { body }),
  stopAsking: (id) => request("DELETE", stream(id, "/questions")),
  answers: (id) => request("GET", stream(id, "/answers")),
};

/** Addresses for links. */
export const links = {
  answers: (id) => here(stream(id, "/answers")).href,
  records: (id) => here(stream(id, "/records?last=900")).href,
  snapshot: (id, view) => here(stream(id, `/snapshot.jpg?view=${encodeURIComponent(view)}`)).href,
};
