// A button before everything else on the page that moves the focus to Run: the navigation alone takes several Tab presses.
if (!document.querySelector(".vitprof-skip")) {
  const landmark = document.createElement("nav");
  landmark.className = "vitprof-skip";
  landmark.setAttribute("aria-label", "Shortcuts");
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Skip to Run";
  button.addEventListener("click", () => {
    const run = [...document.querySelectorAll(".st-key-run-button button")].find((b) => b.checkVisibility());
    // A closed sidebar, as on a phone, is opened first.
    if (!run) document.querySelector("[data-testid=stExpandSidebarButton]")?.click();
    (run ?? document.querySelector(".st-key-run-button button"))?.focus();
  });
  landmark.append(button);
  document.body.prepend(landmark);
  // On a phone the sidebar covers the page: Run and links to pages, which are in it, close it.
  document.addEventListener("click", (event) => {
    if (innerWidth < 768 && event.target.closest(".st-key-run-button button:enabled, [data-testid=stSidebarNavLink]"))
      document.querySelector("[data-testid=stSidebarCollapseButton] button")?.click();
  });
}
