// Buttons with data-copy="#id" copy the text of that element, on plain HTTP, too.
"use strict";
(() => {
  function select(element) {
    const range = document.createRange();
    range.selectNodeContents(element);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
  }
  async function copy(element) {
    if (navigator.clipboard && isSecureContext) {
      try { await navigator.clipboard.writeText(element.textContent); return true; } catch { /* the other way */ }
    }
    select(element);
    const copied = document.execCommand("copy");
    if (copied) getSelection().removeAllRanges(); // else it stays selected: Ctrl+C copies it
    return copied;
  }
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const copied = await copy(document.querySelector(button.dataset.copy));
    button.textContent = copied ? "Copied" : "Press Ctrl+C";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
})();
