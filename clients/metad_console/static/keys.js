// Keys of the console, the choice of light or dark, and a new page for one that is over.
(() => {
  const typing = (at) => at && (at.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName));
  const click = (selector) => [...document.querySelectorAll(selector)].find((one) => one.offsetParent)?.click();
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (document.querySelector("dialog[open]") || document.querySelector(".q-dialog__inner")) return;
    const links = document.querySelectorAll("nav.pages a");
    if (/^[0-9]$/.test(event.key)) links[(Number(event.key) + 9) % 10]?.click();
    else if (event.key === "/") document.querySelector(".filters input")?.focus();
    else if (event.key === "p") click("button.pause");
    else if (event.key === "n") click("button.next");
    else if (event.key === "b") click("button.back");
    else if (event.key === "?") document.querySelector("dialog.keys")?.showModal();
    else return;
    event.preventDefault();
  });
  // On a phone the list of pages scrolls: the page that is shown is in sight.
  const show = (tries) => {
    const link = document.querySelector("nav.pages a[aria-current]");
    if (link) link.parentElement.scrollLeft = link.offsetLeft - (link.parentElement.clientWidth - link.offsetWidth) / 2;
    else if (tries) requestAnimationFrame(() => show(tries - 1));
  };
  show(300);
  // A page is over at the server some seconds after its connection was lost: after a restart of the console, or behind a
  // laptop that slept. Its WebSocket is refused then. Once the console answers again, the page is loaded anew.
  const AGAIN_MS = 3000;
  let refused = 0;
  setInterval(async () => {
    const lost = window.did_handshake && window.socket && !window.socket.connected;
    refused = lost ? refused + 1 : 0;
    if (refused < 2) return;  // the framework tries by itself first
    const there = await fetch("/console/keys.js", { cache: "no-store", signal: AbortSignal.timeout(AGAIN_MS) }).catch(() => null);
    if (there && there.ok && !window.socket.connected) location.reload();
  }, AGAIN_MS);
  window.metadTheme = () => {
    const dark = !document.body.classList.contains("body--dark");
    document.cookie = `metad_theme=${dark ? "dark" : "light"};path=/;max-age=31536000;samesite=strict`;
    Quasar.Dark.set(dark);
    window.dispatchEvent(new Event("metad-theme"));
  };
})();
