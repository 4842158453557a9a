// Runs before the first paint, so that the page does not flash in the wrong colours. Not a module for that reason.
(() => {
  const KEY = "arr-stream.theme";
  const system = matchMedia("(prefers-color-scheme: light)");

  function kept() {
    try {
      const value = localStorage.getItem(KEY);
      return value === "dark" || value === "light" ? value : null;
    } catch {
      return null; // storage is closed to this page: follow the system
    }
  }

  function show(theme) {
    document.documentElement.dataset.theme = theme;
    window.dispatchEvent(new Event("arr-theme"));
  }

  function follow() {
    show(kept() ?? (system.matches ? "light" : "dark"));
  }

  window.arrTheme = {
    toggle() {
      const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      try {
        localStorage.setItem(KEY, theme);
      } catch {
        // the choice then lasts as long as the page
      }
      show(theme);
    },
  };
  follow();
  system.addEventListener("change", follow);
})();
