"""The HTML report of `hotset stats --html`."""
