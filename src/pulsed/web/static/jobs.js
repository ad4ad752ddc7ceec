// The list of jobs: selection by checkbox, with shift for a range, and what is selected.
"use strict";
(() => {
  const form = document.querySelector("[data-jobs]");
  const boxes = () => [...form.querySelectorAll('input[name="id"]:not(:disabled)')];
  const said = form.querySelector("[data-selected]");
  let last = null;

  function update() {
    const all = boxes(), chosen = all.filter((box) => box.checked).length;
    const whole = form.querySelector("[data-all]");
    if (whole) {
      whole.checked = chosen > 0 && chosen === all.length;
      whole.indeterminate = chosen > 0 && chosen < all.length;
    }
    if (said) said.textContent = `${chosen} selected`;
    form.classList.toggle("selecting", chosen > 0);
  }

  form.addEventListener("click", (event) => {
    const box = event.target;
    if (box.matches("[data-all]")) boxes().forEach((each) => { each.checked = box.checked; });
    else if (box.matches("[data-none]")) boxes().forEach((each) => { each.checked = false; });
    else if (box.matches('input[name="id"]')) {
      const all = boxes(), here = all.indexOf(box), from = all.indexOf(last);
      if (event.shiftKey && from >= 0) {
        for (const each of all.slice(Math.min(here, from), Math.max(here, from) + 1)) each.checked = box.checked;
      }
      last = box;
    } else return;
    update();
  });
  document.addEventListener("pulsed:refreshed", update);
  addEventListener("pageshow", update);
  update();
})();
