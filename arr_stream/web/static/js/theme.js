// Runs before the first paint, so that the page does not flash in the wrong colours. Not a module for that reason.
(() => {
  const KEY = "arr-stream.theme";
  const root = document.documentElement;

  function kept() {
    try {
      const value = localStorage.getItem(KEY);
      return value === "dark" || value === "light" ? value : null;
    } catch {
      return null; // storage is closed to this page: follow the system
    }
  }

  function current() {
    return root.dataset.theme ?? (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark");
  }

  const first = kept();
  if (first) root.dataset.theme = first;

  window.arrTheme = {
    current,
    toggle() {
      root.dataset.theme = current() === "dark" ? "light" : "dark";
      try {
        localStorage.setItem(KEY, root.dataset.theme);
      } catch {
        // the choice then lasts as long as the page
      }
      window.dispatchEvent(new Event("arr-theme"));
      return root.dataset.theme;
    },
  };
  matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => window.dispatchEvent(new Event("arr-theme")));
})();
