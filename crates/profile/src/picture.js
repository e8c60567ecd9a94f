"use strict";
// The field asks inferno's own search, which marks the frames and says how much they are of the whole.
document.getElementById("find").addEventListener("submit", function (event) {
    event.preventDefault();
    var term = document.getElementById("term").value;
    var said = document.getElementById("found");
    if (searching) search_prompt(); // which, while it is on, takes the marks away
    said.textContent = "";
    if (term === "") return;
    try {
        search(term);
        said.textContent = searching ? document.getElementById("matched").textContent : "nothing matches";
    } catch (error) {
        said.textContent = error.message;
    }
});
