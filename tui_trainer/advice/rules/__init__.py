"""Rules of the advice, one file for each subject. Every Rule in these files is found automatically."""
