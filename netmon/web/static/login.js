// SPDX-License-Identifier: Apache-2.0
if (location.search === "?again") document.getElementById("again").hidden = false;
