// Runs before the page is painted, so that a chosen theme does not flash the other one.
"use strict";
try {
  const chosen = localStorage.getItem("pulsed-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* storage is blocked: the system's theme it is */ }
