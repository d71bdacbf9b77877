"""Reports that can be shown around: one model of a report, written as a page of HTML or as Markdown."""
