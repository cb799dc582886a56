"""What training recipes share: courses, features, losses, schedules and export."""
