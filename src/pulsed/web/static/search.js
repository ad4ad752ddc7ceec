// The search box, completed as one types, and the palette that Ctrl-K opens. Both are comboboxes.
"use strict";
(() => {
  const base = document.querySelector('meta[name="base"]').content;
  const complete = async (text) => {
    const answer = await fetch(`${base}/jobs/complete?q=${encodeURIComponent(text)}`);
    return answer.ok ? answer.json() : [];
  };

  // Offers what `suggest(text)` returns, [{label, ...}], below an input; `choose` gets one of them.
  function combobox(input, list, suggest, choose) {
    let options = [], active = -1, asked = 0;
    function mark(index) {
      active = index;
      [...list.children].forEach((item, number) => item.setAttribute("aria-selected", String(number === index)));
      if (index >= 0) {
        input.setAttribute("aria-activedescendant", list.children[index].id);
        list.children[index].scrollIntoView({ block: "nearest" });
      } else input.removeAttribute("aria-activedescendant");
    }
    function show(found) {
      const kept = options[active]?.label; // an answer that comes late moves no highlight
      options = found;
      list.replaceChildren(...found.map(({ label, hint }, number) => {
        const item = document.createElement("li");
        item.id = `${list.id}-${number}`;
        item.setAttribute("role", "option");
        item.textContent = label;
        if (hint) {
          const soft = document.createElement("span");
          soft.textContent = hint;
          item.append(soft);
        }
        return item;
      }));
      list.hidden = !found.length;
      input.setAttribute("aria-expanded", String(found.length > 0));
      mark(found.findIndex(({ label }) => label === kept));
    }
    async function update() {
      const turn = ++asked;
      let found = [];
      try { found = await suggest(input.value); } catch { /* nothing to offer */ }
      if (turn === asked) show(found);
    }
    function close() { asked += 1; show([]); }
    function pick(index) { const option = options[index]; close(); choose(option, update); }
    input.addEventListener("input", update);
    input.addEventListener("focus", update);
    input.addEventListener("blur", close);
    list.addEventListener("mousedown", (event) => { // before the blur
      event.preventDefault();
      const item = event.target.closest("li");
      if (item) pick([...list.children].indexOf(item));
    });
    input.addEventListener("keydown", (event) => {
      if (event.isComposing || !options.length) return;
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) mark(active < 0 ? (step > 0 ? 0 : options.length - 1) : (active + step + options.length) % options.length);
      else if (event.key === "Enter" && active >= 0) pick(active);
      else if (event.key === "Tab" && !event.shiftKey && active >= 0) pick(active);
      else if (event.key === "Escape") { close(); event.stopPropagation(); }
      else return;
      event.preventDefault();
    });
  }

  const box = document.querySelector("[data-search]");
  combobox(box, document.querySelector("#completions"),
    async (text) => (await complete(text)).map((whole) => ({ label: whole.split(/\s+(?=\S+$)/).pop(), whole })),
    ({ whole }, update) => {
      box.value = /[:.]$/.test(whole) ? whole : `${whole} `;
      box.focus();
      if (/[:.]$/.test(whole)) update();
    });

  // -- the palette --------------------------------------------------------------------------------------
  const palette = document.querySelector("[data-palette]");
  const wanted = palette.querySelector("input");
  const jobs = (q) => `${base}/jobs?q=${encodeURIComponent(q)}`;
  combobox(wanted, palette.querySelector("ul"), async (text) => {
    const word = text.trim().toLowerCase();
    const found = [...document.querySelectorAll("#navigation a")]
      .map((link) => ({ label: link.firstChild.textContent.trim(), hint: "page", href: link.href }))
      .filter(({ label }) => label.toLowerCase().includes(word));
    if (/^[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}$/.test(word)) {
      found.unshift({ label: `Open job ${word}`, href: `${base}/jobs/${word}` });
    } else if (/^[0-9a-f]{6,31}$/.test(word)) {
      found.unshift({ label: `Open job …${word}`, href: jobs(`id:${word}`) });
    }
    if (word) {
      for (const term of await complete(`topic:${/\s/.test(word) ? `"${word}"` : word}`)) {
        found.push({ label: term.replace(/^topic:/, ""), hint: "topic", href: jobs(term) });
      }
      found.push({ label: `Search for ${text.trim()}`, href: jobs(text.trim()) });
    }
    return found.slice(0, 14);
  }, ({ href }) => { location.href = href; });
  wanted.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.defaultPrevented) {
      const first = palette.querySelector("li");
      if (first) { first.dispatchEvent(new MouseEvent("mousedown", { bubbles: true })); event.preventDefault(); }
    }
  });
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      if (palette.open) return palette.close();
      wanted.value = "";
      palette.showModal();
      wanted.dispatchEvent(new Event("input"));
    }
  });
  palette.addEventListener("click", (event) => { if (event.target === palette) palette.close(); });
})();
