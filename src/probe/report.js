'use strict';
// A layer picked in the heat map is the only one that the tables show; picked again, or with
// Escape, all come back.
(() => {
  const bar = document.getElementById('filter');
  const rows = document.querySelectorAll('tr[data-layer]');
  const picks = document.querySelectorAll('[data-pick]');
  let chosen = null;
  const show = (layer) => {
    chosen = layer;
    for (const row of rows) row.hidden = layer !== null && row.dataset.layer !== layer;
    for (const pick of picks) pick.setAttribute('aria-pressed', String(pick.dataset.pick === layer));
    bar.hidden = layer === null;
    bar.querySelector('output').textContent = layer === null ? '' : `Tables show layer ${layer} only.`;
    if (layer !== null) document.getElementById('layers').open = true;
  };
  const toggle = (layer) => show(layer === chosen ? null : layer);
  // Tab comes to one of them, the arrows go from one to the next.
  const reach = (chosen) => {
    for (const pick of picks) pick.setAttribute('tabindex', pick === chosen ? '0' : '-1');
  };
  reach(picks[0]);
  picks.forEach((pick, index) => {
    pick.addEventListener('click', () => { reach(pick); toggle(pick.dataset.pick); });
    pick.addEventListener('keydown', (event) => {
      const next = { ArrowRight: picks[index + 1], ArrowLeft: picks[index - 1],
                     Home: picks[0], End: picks[picks.length - 1] }[event.key];
      if (next) {
        reach(next);
        next.focus();
      } else if (event.key === 'Enter' || event.key === ' ') {
        toggle(pick.dataset.pick);
      } else {
        return;
      }
      event.preventDefault();
    });
  });
  bar.querySelector('button').addEventListener('click', () => show(null));
  addEventListener('keydown', (event) => { if (event.key === 'Escape') show(null); });
  // What is wider than the page is reached with Tab and scrolled with the arrows.
  const scrollers = document.querySelectorAll('.scroll');
  const measure = () => {
    for (const box of scrollers) {
      if (box.scrollWidth > box.clientWidth) box.setAttribute('tabindex', '0');
      else box.removeAttribute('tabindex');
    }
  };
  measure();
  addEventListener('resize', measure);
  addEventListener('toggle', measure, true);
  // On paper nothing can be opened: all but long tables are open while it is printed.
  let opened = [];
  addEventListener('beforeprint', () => {
    opened = [...document.querySelectorAll('details:not([open])')]
      .filter((detail) => detail.querySelectorAll('tr').length <= 60);
    for (const detail of opened) detail.open = true;
  });
  addEventListener('afterprint', () => { for (const detail of opened) detail.open = false; });
})();
