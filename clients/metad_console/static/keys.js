// Keys of the console, and the choice of light or dark. Nothing here talks to the server.
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
  window.metadTheme = () => {
    const dark = !document.body.classList.contains("body--dark");
    document.cookie = `metad_theme=${dark ? "dark" : "light"};path=/;max-age=31536000;samesite=strict`;
    Quasar.Dark.set(dark);
    window.dispatchEvent(new Event("metad-theme"));
  };
})();
