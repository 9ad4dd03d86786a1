"""Which of our addresses others reach, found out by asking them: nobody knows it by itself."""
