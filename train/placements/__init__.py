"""Where rows live, and the step plan of each batch."""
