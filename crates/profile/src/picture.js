"use strict";
// The search field uses inferno's search, which marks the matching frames and shows their share of the total.
document.getElementById("find").addEventListener("submit", function (event) {
    event.preventDefault();
    var term = document.getElementById("term").value;
    var result = document.getElementById("found");
    if (searching) search_prompt(); // during a search, this removes the marks
    result.textContent = "";
    if (term === "") return;
    try {
        search(term);
        result.textContent = searching ? document.getElementById("matched").textContent : "no match";
    } catch (error) {
        result.textContent = error.message;
    }
});
