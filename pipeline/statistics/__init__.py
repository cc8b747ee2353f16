"""Series of statistics that are read from the folders of the stages."""
