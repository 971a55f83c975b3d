"""Lessons: a teacher teaches a student, round by round; studies of many such runs."""
