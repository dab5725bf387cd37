// A classic script in the page's head, so that the first paint has the chosen colours already.
try {
  const theme = JSON.parse(localStorage.getItem("edgespec") ?? "{}").theme;
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // the system's colours
}
