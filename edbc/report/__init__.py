"""What people look at: explanations of plans as text, JSON and pages, timelines, and reports of checks."""
