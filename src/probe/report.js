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
  for (const pick of picks) {
    pick.addEventListener('click', () => toggle(pick.dataset.pick));
    pick.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' && event.key !== ' ') return;
      event.preventDefault();
      toggle(pick.dataset.pick);
    });
  }
  bar.querySelector('button').addEventListener('click', () => show(null));
  addEventListener('keydown', (event) => { if (event.key === 'Escape') show(null); });
  // On paper nothing can be opened: all is open while it is printed.
  let opened = [];
  addEventListener('beforeprint', () => {
    opened = [...document.querySelectorAll('details:not([open])')];
    for (const detail of opened) detail.open = true;
  });
  addEventListener('afterprint', () => { for (const detail of opened) detail.open = false; });
})();
