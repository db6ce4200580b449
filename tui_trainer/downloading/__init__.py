"""The only room that asks the Hugging Face Hub for something: `tui-trainer download`, after a question."""
