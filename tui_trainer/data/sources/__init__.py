"""Sources of rows and documents: files, folders, samples, named data sets. They yield one row at a time."""
