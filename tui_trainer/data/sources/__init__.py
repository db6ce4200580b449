"""Where rows and documents come from: files, folders, samples, data sets by name. One row or document at a time."""
