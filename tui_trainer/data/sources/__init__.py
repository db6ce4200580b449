"""Sources of rows and documents: files, folders, samples, data sets by name. They yield one row or document at a
time."""
